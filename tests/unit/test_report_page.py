"""The page: one file that needs nothing else, and shows what is in the tables."""

import base64
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from kvscope.judge.reason import NO_WARM_UP
from kvscope.metrics.experiment import analyse
from kvscope.plan.devices.dry import Dry
from kvscope.plan.experiment import dump
from kvscope.plan.grid import expand
from kvscope.plan.layers import SHIPPED_CONFIG
from kvscope.report.circumstances import circumstances, faults
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.load import load
from kvscope.report.page import write_page
from kvscope.report.render import Printed, scripts
from kvscope.report.section import Report, sections
from kvscope.report.sections.reproduce import origin
from kvscope.report.study import report
from kvscope.tables.runfile import file_record, read_run, write_run
from kvscope.tables.verdict import HELD, VIOLATED
from tests.run_records import record_of

from .report_fixture import Fake, write_study

pytestmark = pytest.mark.slow

HOSTILE = "</script><script>document.title = 'broken'</script><!-- $x$ "
FAKES = [
    Fake({"cache.blocks": 96, "batching": "mixed"}, stall=False),
    Fake({"cache.blocks": 24, "batching": "mixed"}, "swap", stall=False),
    Fake({"cache.blocks": 24, "batching": HOSTILE}, "recompute", warm=False),
    Fake(
        {"cache.blocks": 4, "batching": "mixed"},
        status="failed",
        reason="a request needs 6 blocks " + HOSTILE,
        log="\n".join(f"line {n}" for n in range(100)) + f"\nlast {HOSTILE}\n",
    ),
    Fake({"cache.blocks": 2, "batching": "mixed"}, status=None),
]


class Elements(HTMLParser):
    """Every element's attributes by tag, and what scripts of data hold."""

    def __init__(self, html):
        super().__init__()
        self.elements = []
        self.data = {}
        self.open = None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        self.open = attributes if tag == "script" and "type" in attributes else None

    def handle_data(self, data):
        if self.open is None:
            return
        if self.open["type"] == "text/plain":
            data = zlib.decompress(base64.b64decode(data)).decode()
        name = self.open["id"]
        self.data[name] = data if name == "vega" else json.loads(data)

    def handle_endtag(self, tag):
        self.open = None


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("results"), FAKES)


@pytest.fixture(scope="module")
def html(results):
    return report(["fake"], results, None).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html):
    return Elements(html)


def test_it_loads_nothing(page):
    for tag, attributes in page.elements:
        assert attributes.get("src", "data:").startswith("data:"), tag
        assert tag not in ("link", "iframe", "object", "embed", "base")


def test_it_has_no_address_of_the_network_outside_its_images(html):
    own = re.sub(r'src="data:image/[^"]*"', "", html)  # an SVG names its namespace
    assert not re.search(r"https?://|@import|url\(", own)


def test_its_images_load_nothing(page):
    for image in (a["src"] for tag, a in page.elements if tag == "img"):
        assert not re.search(r"<image|href=|url\((?!#)", unquote(image))


def test_it_tells_the_browser_to_load_nothing(page):
    policy = next(a["content"] for _, a in page.elements if "http-equiv" in a)
    assert policy.startswith("default-src 'none'; script-src 'unsafe-inline'")
    assert "http" not in policy
    assert "eval" not in policy


def test_it_opens_with_what_is_wrong_then_the_headline_then_the_chart_that_shows_it(html, page):
    places = [html.index(f'class="{part}"') for part in ("banner", "headline")]
    places += [html.index('data-figure="lead"'), html.index("<h2>Findings")]
    assert places == sorted(places)
    banner = html[places[0] : places[1]]
    assert "2 experiments\n    without results" in banner
    assert "failed; a request needs 6 blocks" in banner
    assert "Not valid and not compared: 1 experiment (no_warm_up)" in banner
    lost = r"KV cache \d+ instead of \d+ blocks: \d\d\xa0% \(±\xa0[\d.]+\) lower"
    assert re.search(f'class="headline">{lost}', html)
    lead = page.data["data-lead"]
    assert len(lead["views"]) == 1
    assert {
        title
        for spec in lead["specs"]
        for cell in spec["concat"]
        for title in cell["title"]["text"]
    } == {"Throughput (tokens/s)"}


def test_it_is_a_list_of_sections(results, page, tmp_path):
    every = sections()
    ids = [a["id"] for tag, a in page.elements if tag == "section" and a["id"] in every]
    assert ids == [name for name in every if name in ids]
    assert {"findings", "experiments", "charts", "timeline", "reproduce"} <= {*ids}
    few = {name: every[name] for name in ("reproduce", "findings")}
    written = write_page(Report(load(["fake"], results), results, tmp_path), few)
    found = Elements(written.read_text(encoding="utf-8")).elements
    assert [a["id"] for tag, a in found if tag == "section"] == [*few]


@pytest.mark.parametrize("state", [HELD, VIOLATED])
def test_a_checklist_is_folded_unless_an_oracle_is_violated(state, results, tmp_path):
    study = load(["fake"], results)
    verdict = replace(study.complete[0].verdicts[0], state=state)
    runs = tuple(replace(run, verdicts=(verdict,) * run.complete) for run in study.runs)
    made = Report(replace(study, runs=runs), results, tmp_path)
    path = write_page(made, {"experiments": sections()["experiments"]})
    page = path.read_text(encoding="utf-8")
    assert '<details class="checklist">' in page or state == VIOLATED
    assert '<details class="checklist" open>' in page or state == HELD


def test_every_column_can_be_chosen_and_those_shown_are_checked(page):
    headings = [a for tag, a in page.elements if tag == "th" and "data-better" in a]
    boxes = [a for tag, a in page.elements if tag == "input" and "data-column" in a]
    assert [int(a["data-column"]) for a in boxes] == list(range(2, 2 + len(headings)))
    assert ["checked" in a for a in boxes] == ["hidden" not in a for a in headings]
    assert any("checked" in a for a in boxes)


def test_its_links_lead_to_what_is_there(results, page):
    here = results / "studies" / "fake" / "unfinished"
    links = {a["href"] for tag, a in page.elements if tag == "a"}
    ids = {a["id"] for _, a in page.elements if "id" in a}
    timelines = {f"timeline-{fake.id}" for fake in FAKES[:3]}
    for link in links:
        if link.startswith("#"):
            assert link[1:] in ids | timelines
        else:
            assert (here / link).exists(), link
    assert "figures/throughput.pdf" in links


def test_every_experiment_is_in_the_table(page):
    rows = {a["id"] for tag, a in page.elements if tag == "tr" and "id" in a}
    assert rows == {f"row-{fake.id}" for fake in FAKES}


def test_a_failed_experiment_shows_its_reason_and_the_end_of_its_log(html):
    assert "failed; a request needs 6 blocks &lt;/script&gt;" in html
    assert "line 99\nlast &lt;/script&gt;" in html
    assert "line 50\n" not in html


def test_an_experiment_that_has_not_run_is_shown_as_such(html):
    assert "<strong>KV cache 2 blocks, mixed</strong>: not run</summary>" in html
    assert "5 experiments, 3 complete, 2 valid, 1 failed, 1 not run" in html


def test_nothing_in_the_data_can_end_a_script(html, page):
    opened = sum(tag == "script" for tag, _ in page.elements)
    assert html.count("</script>") == opened
    assert HOSTILE.strip() in json.dumps(page.data["data-throughput"])


def test_every_chart_refers_to_its_tables_and_specifications(page):
    figures = {name: one for name, one in page.data.items() if name.startswith("data-")}
    assert {"data-throughput", "data-step_timeline"} <= set(figures)
    for one in figures.values():
        for view in one["views"]:
            assert one["specs"][view["spec"]]
            named = set(
                re.findall(r'"data": ?{"name": ?"(\w+)"}', json.dumps(one["specs"][view["spec"]]))
            )
            assert named == set(view["data"]) or view["data"].keys() <= named
            for table in view["data"].values():
                assert len({len(column) for column in one["tables"][table].values()}) == 1


def test_every_chart_is_there_without_scripts_and_on_paper(page):
    images = {a["alt"]: a["src"] for tag, a in page.elements if tag == "img"}
    assert {"Throughput", "Step timelines"} <= set(images)
    for url in images.values():
        ((kind, content),) = re.findall(r"\Adata:image/(png;base64|svg\+xml),(.*)\Z", url, re.S)
        if kind == "svg+xml":
            assert ElementTree.fromstring(unquote(content)).tag.endswith("svg")
        else:
            assert base64.b64decode(content).startswith(b"\x89PNG")


def test_the_page_has_the_library_that_draws_its_charts(page):
    assert page.data["vega"] == scripts()


def test_an_image_of_many_marks_takes_less_room_as_pixels():
    marks = "".join(f'<rect x="{n % 100}.123456" width="2"/>' for n in range(10_000))
    size = 'width="100" height="100" viewBox="0 0 100 100"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{marks}</svg>'
    assert Printed(svg, b"", b"").url.startswith("data:image/png;base64,")


def test_an_image_is_drawn_to_a_tenth_of_a_pixel_and_its_words_stay_as_they_are():
    url = Printed('<svg><text x="12.3456">0.005</text></svg>', b"", b"").url
    assert unquote(url.partition(",")[2]) == "<svg><text x='12.3'>0.005</text></svg>"


def test_the_conditions_are_one_line_and_one_chart(html, page):
    (line,) = re.findall(r'<p class="conditions">(.*?)</p>', html)
    assert line.startswith("3 experiments by themselves, 9 repeats; ")
    charts = [a for tag, a in page.elements if a.get("data-figure") == "conditions"]
    assert len(charts) == 1
    (view,) = page.data["data-conditions"]["views"]
    assert len(page.data["data-conditions"]["tables"][view["data"]["repeats"]]["speed"]) == 9


def test_every_complete_experiment_stands_in_a_chart(page):
    tables_of = page.data["data-throughput"]
    (everything,) = [v for v in tables_of["views"] if v["choice"] == ["experiment"]]
    shown = {
        name
        for table in everything["data"].values()
        for name in tables_of["tables"][table]["experiment"]
    }
    assert len(shown) == 3


def test_the_doubtful_experiment_has_its_reason_and_what_it_means(html):
    assert ">no_warm_up</abbr>" in html
    assert NO_WARM_UP.meaning in html


def page_on(device: str, place: Path) -> str:
    """The page of a run whose settings and facts say that it was made on this virtual device."""
    fake = Fake({"cache.blocks": 64})
    write_study(place, [fake])
    run = place / "experiments" / fake.id
    open_loop = [f"device={device}", "workload.arrival=poisson", "workload.rate_per_s=1"]
    # No intervals of predictions apply to open loop.
    (planned,) = expand(None, open_loop, SHIPPED_CONFIG).experiments
    (run / "experiment.yaml").write_text(dump(planned.experiment))
    facts = read_run(run)
    files = facts["files"] | {"experiment.yaml": file_record(run / "experiment.yaml")}
    write_run(run, facts | {"time_source": "modeled", "files": files})
    analyse(run, place / "tables" / fake.id)
    return report(["fake"], place, None).read_text(encoding="utf-8")


@pytest.mark.thorough
def test_measured_times_are_called_measured_and_modeled_ones_modeled(html, tmp_path):
    assert '<span class="badge measured">measured</span>' in html
    modeled = page_on("dry", tmp_path)
    assert '<span class="badge modeled">MODELED</span>' in modeled
    assert "modeled, not measured" in json.dumps(Elements(modeled).data["data-throughput"])
    assert Dry.caveat not in html


@pytest.mark.thorough
def test_a_page_of_the_dry_device_says_that_its_times_mean_nothing(tmp_path):
    assert f'<p class="modeled-note">{Dry.caveat}</p>' in page_on("dry", tmp_path)


def test_an_import_is_shown_with_its_faults_and_how_it_was_made(tmp_path):
    source = {"kind": "unboxkv-series", "series": "swap", "files": [{"file": "a.csv"}]}
    record = record_of(imported_from=source, faults=["tokens are derived", "usage is rounded"])
    run = ReportedRun("r", "r", {}, tmp_path, record)
    study = StudyData("s", "S", "", (), (run,))
    told = {c.name: c.values for c in circumstances(study)}
    assert told["Imported from"] == (("a.csv", ""),)
    assert faults(study) == [("tokens are derived", ""), ("usage is rounded", "")]
    assert origin(run, usual=True) == [
        f"kvscope import unboxkv-series a.csv --series swap --out {tmp_path}"
    ]
