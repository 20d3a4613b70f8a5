"""The loops of copies, with a copy that the host makes in the place of CUDA's."""

import ctypes

import pytest

torch = pytest.importorskip("torch")

from kvscope_rehearsal import cuda_copies  # noqa: E402

SIGNATURE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p),
)
FULL = 700  # bytes, of which no copy is made


@pytest.fixture(params=["C", "Python"])
def kinds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kind of each copy that was made."""
    made: list[int] = []

    def copy(to: int, of: int, size: int, kind: int, stream: int) -> int:
        if size == FULL:
            return 2
        ctypes.memmove(to, of, size)
        made.append(kind)
        return 0

    called = SIGNATURE(copy)
    monkeypatch.setattr(cuda_copies, "copy_function", lambda: called)
    monkeypatch.setattr(cuda_copies, "current_stream", lambda device=None: 0)
    monkeypatch.setattr(cuda_copies, "batch_function", lambda: None)
    if request.param == "Python":
        monkeypatch.setattr(cuda_copies, "compiled_loops", lambda: None)
    elif cuda_copies.compiled_loops() is None:
        pytest.skip("there is no C compiler")
    return made


def test_blocks_go_where_the_mapping_says(kinds: list[int]) -> None:
    source = torch.arange(60, dtype=torch.uint8).reshape(6, 10)
    target = torch.zeros(4, 10, dtype=torch.uint8)
    cuda_copies.CudaCopies().blocks(target, source, 10, torch.tensor([[5, 0], [2, 3]]))
    assert torch.equal(target[[0, 3]], source[[5, 2]])
    assert not target[1:3].any()
    assert kinds == [cuda_copies.TO_DEVICE] * 2


def test_a_batch_copies_between_all_addresses(kinds: list[int]) -> None:
    source, target = torch.arange(9, dtype=torch.uint8), torch.zeros(9, dtype=torch.uint8)
    of = torch.tensor([source.data_ptr() + n for n in (0, 4)])
    to = torch.tensor([target.data_ptr() + n for n in (6, 1)])
    cuda_copies.CudaCopies().batch(to, of, torch.tensor([3, 2]), any_order=True)
    assert target.tolist() == [0, 4, 5, 0, 0, 0, 0, 1, 2]


def test_an_error_is_raised(kinds: list[int]) -> None:
    memory = torch.zeros(2, FULL, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="error 2"):
        cuda_copies.CudaCopies().blocks(memory, memory, FULL, torch.tensor([[0, 1]]))


def test_structures_are_laid_out_as_cudas() -> None:
    assert ctypes.sizeof(cuda_copies.Attributes) == 24  # cuda.h: an enum, two locations, flags
    assert cuda_copies.Attributes.target_hint.offset == 12
