"""Which layers of the builds' cache stay: those of the last builds and whatever has a name."""

from __future__ import annotations

from dev.images.layers import KEPT_BUILDS, Stored, obsolete, remember, steps

OUTPUT = """\
[1/2] STEP 1/3: FROM localhost/falcon-base:bookworm AS build
[1/2] STEP 2/3: COPY a /a
--> Using cache 35b9fba501235bd28dd6044f2c4ed96b55caa1b2785b30ccac3bef269ef4ebc3
--> 35b9fba5012
[1/2] STEP 3/3: RUN echo "--> 0123456789a"
  --> 0123456789a
--> 15d7cbbfb5d
[2/2] COMMIT localhost/falcon/x:dev
--> 3e9aee0c653
Successfully tagged localhost/falcon/x:dev
3e9aee0c6530beab9a5bb25b192a61a4d05616f4278dece490a6d6da065bf09e
"""


def stored(digits: str, seconds: str, *names: str) -> Stored:
    return Stored(id=f"sha256:{digits:0<64}", created=f"2026-11-21T15:55:{seconds}Z", names=list(names) or None)


def test_a_builds_steps_are_the_steps_that_it_made_or_took_from_the_cache() -> None:
    assert steps(OUTPUT) == ["35b9fba5012", "15d7cbbfb5d", "3e9aee0c653"]


def test_the_last_builds_are_remembered_each_once() -> None:
    builds: list[str] = []
    for step in ("a", "b", "a", "c"):
        builds = remember(builds, [step, "end"])
    assert builds == ["b end", "a end", "c end"]
    for number in range(10):
        builds = remember(builds, [str(number)])
    assert builds == [str(number) for number in range(10 - KEPT_BUILDS, 10)]


def test_nameless_layers_of_no_remembered_build_go_and_children_first() -> None:
    images = [
        stored("1111111111111", "10"),
        stored("2222222222222", "20"),
        stored("3333333333333", "30", "localhost/falcon/x:dev"),
        stored("4444444444444", "10.08"),
        stored("5555555555555", "15"),
        stored("6666666666666", "10.071"),
    ]
    assert obsolete(images, {"2" * 11, "5" * 11}) == [f"{digit * 13:0<64}" for digit in "461"]


def test_without_a_remembered_build_every_nameless_layer_goes() -> None:
    assert len(obsolete([stored("1", "01"), stored("2", "02", "x:1")], set())) == 1
