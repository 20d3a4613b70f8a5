#!/usr/bin/env bash
# Unpack NVIDIA Nsight Systems into the directory DEST.
#
#   workflow/scripts/install-nsys.sh DEST
#
# The packages come from the mirror that apt is configured with and are checked by apt's
# signatures, but they are unpacked, not installed: no root, and apt and dpkg stay as they are.
# Does nothing if DEST holds a working nsys. Exit 1, with one sentence, where it cannot be had.
# Nsight Systems has NVIDIA's own licence: DEST/usr/share/doc/nsight-systems/EULA.txt.gz.
set -euo pipefail

dest=${1:?usage: install-nsys.sh DEST}

unavailable() {
    if command -v nsys >/dev/null; then
        echo "Nsight Systems is not unpacked here ($1); $(command -v nsys) is used."
        exit 0
    fi
    echo "Nsight Systems cannot be unpacked here ($1): install it from NVIDIA and put nsys on" \
        "PATH, or name it in KVSCOPE_NSYS." >&2
    exit 1
}

if [ -x "$dest/bin/nsys" ] && version=$("$dest/bin/nsys" --version); then
    echo "$version is in $dest"
    exit 0
fi

place=$dest
[[ $dest == /* ]] || place=$PWD/$dest
[[ $place != *" "* ]] || unavailable "nsys does not start from a path with a space, '$place'"
[ "$(uname -sm)" = "Linux x86_64" ] || unavailable "the packages are for x86-64 Linux"
for tool in apt-get dpkg-deb; do
    command -v "$tool" >/dev/null || unavailable "there is no $tool"
done

# The release of this machine, and the release and component that hold Nsight Systems.
. /etc/os-release
own=${VERSION_CODENAME:-}
case ${ID:-} in
    debian) suite=trixie component=non-free ;;   # bookworm's nsys is older and may hang
    ubuntu) suite=$own component=multiverse ;;
    *) unavailable "this is neither Debian nor Ubuntu" ;;
esac

work=$(mktemp -d 2>/dev/null) || unavailable "${TMPDIR:-/tmp} cannot be written; TMPDIR names another place"
new=$dest.new
trap 'rm -rf "$work" "$new"' EXIT
mkdir -p "$work"/{lists,cache/archives}/partial "$work"/{debs,tmp}

# Everything that apt writes goes to $work, and none of the system's hooks runs.
cat >"$work/apt.conf" <<EOF
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State::Lists "$work/lists";
Dir::Cache "$work/cache";
APT::Sandbox::User "$(id -un)";
Acquire::Languages "none";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
EOF

# The mirrors that apt would ask for this release. (Only asked, so neither root nor lists needed.)
configured_mirrors() {
    apt-get update --print-uris 2>/dev/null |
        sed -n "s|^'\(.*\)/dists/$own/InRelease'.*|\1|p" | awk '!seen[$0]++'
}

# The libraries come from this machine's own release, whose C library they need. In newer releases
# the name of libelf's package ends in t64.
download_from() {
    local keyring libelf options="arch=amd64"
    for keyring in /usr/share/keyrings/"$ID"-archive-keyring.{gpg,pgp}; do
        [ -e "$keyring" ] && options="arch=amd64 signed-by=$keyring"
    done
    printf 'deb [%s] %s %s\n' \
        "$options" "$1" "$suite $component" "$options" "$1" "$own main" >"$work/sources.list"
    apt-get -qq -c "$work/apt.conf" update || return
    libelf=$(apt-cache -c "$work/apt.conf" pkgnames libelf1 | sort | tail -n 1)
    (cd "$work/debs" && apt-get -qq -c "$work/apt.conf" download \
        "nsight-systems/$suite" "nsight-systems-target/$suite" \
        "libssh-4/$own" "libpfm4/$own" "$libelf/$own")
}

echo "Unpacking Nsight Systems into $dest (once; about 180 MB to download)"
downloaded=
for mirror in $(configured_mirrors); do
    if download_from "$mirror"; then
        downloaded=yes
        break
    fi
done
[ -n "$downloaded" ] || unavailable "no mirror that apt is configured with has it"

# Built beside DEST and renamed when it works, so that a broken DEST is never left behind.
rm -rf "$new"
mkdir -p "$new/bin"
for package in "$work"/debs/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$new" --wildcards \
        --exclude='./usr/share/doc/*/*/*' --exclude='*/translations/*' --exclude='*/resources/*' \
        --exclude='*/libQt6WebEngine*'
done

# The packages spread over /usr what nsys looks for beside itself: put links there.
libraries=$new/usr/lib/x86_64-linux-gnu
host=$new/usr/lib/nsight-systems/host-linux-x64
target=$libraries/nsight-systems/target-linux-x64
link() { ln -sfnr "$1" "$2"; }
link "$host" "$libraries/nsight-systems/host-linux-x64"     # else no report is written
link "$libraries/libelf.so.1" "$target/libelf.so.1"
link "$libraries/libpfm.so.4" "$host/libpfm.so.4"
link "$libraries/libssh.so.4" "$host/libssh.so.4"
link "$libraries/libssh.so.4" "$host/libssh.so"
mkdir -p "$host/python/lib"
for module in "$target"/python/lib/*.py; do                 # else `nsys stats` has no reports
    [ -e "$module" ] && link "$module" "$host/python/lib/${module##*/}"
done
link "$target/nsys" "$new/bin/nsys"

# nsys exits 0 even where it cannot write a report: only a report that can be exported counts.
attempt() { (cd "$work/tmp" && TMPDIR=$work/tmp timeout --kill-after=5 120 "$@") >>"$work/log" 2>&1; }
nsys=$(realpath "$new/bin/nsys")
if ! attempt "$nsys" profile --trace=osrt --sample=none --cpuctxsw=none --output=check true ||
    ! attempt "$nsys" export --type=sqlite --output=check.sqlite check.nsys-rep; then
    cat "$work/log" >&2
    unavailable "it does not run on this machine, see its words above"
fi
rm -rf "$dest"
mv "$new" "$dest"
echo "$("$dest/bin/nsys" --version) is in $dest"
