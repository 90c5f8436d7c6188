import pytest

from whippletree.errors import HarnessError
from whippletree.harness.describe import describe
from whippletree.harness.levels import compose, load_space, paper_base, paper_space, patched
from whippletree.harness.spec import CANONICAL
from whippletree.harness.system_prompt import render
from whippletree.types import Task

TASK = Task("paddock/train/copy/1", "paddock", "train", "copy", 1, "copy oak.txt to elm.txt")


def spec_of(name):
    space = paper_space()
    return compose(space, space.parse(name), paper_base())


def words(text):
    return len(text.split())


def test_the_space_is_the_papers():
    space = paper_space()
    assert [(factor.key, len(factor.levels)) for factor in space.factors] == [(key, 3) for key in "STOCW"]
    assert [level.name for factor in space.factors for level in factor.levels] == [
        *("direct", "product", "story"),
        *("original", "alias", "opaque"),
        *("raw", "infrastructure", "xml"),
        *("full", "compact", "external"),
        *("free", "plan", "verify"),
    ]
    assert all(level.summary for factor in space.factors for level in factor.levels)


def test_every_configuration_composes_to_a_spec_of_its_own():
    space, base = paper_space(), paper_base()
    specs = [compose(space, config, base) for config in space]
    assert len({spec.content_hash for spec in specs}) == len(specs) == 243
    assert [spec.id for spec in specs] == [space.name(config) for config in space]
    assert {spec.parent for spec in specs} == {"base"}
    assert specs[0].content_hash == base.content_hash


@pytest.mark.parametrize(
    ("name", "digest"),
    [("S0T2O1C1W2", "0de951283fafc00e"), ("S2T1O1C2W0", "c59d6be53335d6a1")],
)
def test_hashes_of_named_harnesses_are_stable(name, digest):
    assert spec_of(name).content_hash == digest


@pytest.mark.parametrize(("level", "budget"), [(0, 35), (1, 70), (2, 70)])
def test_prompts_state_the_same_requirements_in_few_words(level, budget):
    system = render(spec_of(f"S{level}T0O0C0W0"), TASK)[0].content
    assert words(system) <= budget
    for requirement in (
        "work only in the workspace",
        "use the tools",
        "take one step at a time",
        "finish with a short message and no tool call",
    ):
        assert requirement in system
    assert system == system.lower()


@pytest.mark.parametrize("level", [0, 1, 2])
def test_functional_tools_stand_one_to_one_for_the_canonical_ones(level):
    tools = spec_of(f"S0T{level}O0C0W0").tools
    functional = [tool for tool in tools if not tool.distractor]
    assert sorted(tool.canonical for tool in functional) == sorted(CANONICAL.keys() - {"delegate"})
    for tool in functional:
        arguments = [tool.canonical_argument(shown) for shown in tool.properties]
        assert sorted(arguments) == sorted(CANONICAL[tool.canonical])
    assert len(tools) - len(functional) == (0 if level == 0 else 3)
    if level:
        assert tools[0].distractor, "distractors are mixed in, not appended"
        assert not tools[1].distractor


@pytest.mark.parametrize("level", [0, 1, 2])
def test_tool_texts_are_short(level):
    for tool in spec_of(f"S0T{level}O0C0W0").tools:
        assert words(tool.description) <= (8 if tool.distractor else 14)
        assert all(words(schema["description"]) <= 4 for schema in tool.properties.values())
        assert not tool.distractor or len(tool.properties) == 1


def test_opaque_tools_give_no_lexical_cue_but_keep_argument_names():
    for tool in spec_of("S0T2O0C0W0").tools:
        assert tool.name.isalpha()
        assert not tool.argument_aliases
        for cue in ("execute", "bash", "file", "edit", "shell", "command", "terminal"):
            assert cue not in f"{tool.name} {tool.description}"


def test_infrastructure_metadata_is_short():
    prefix, suffix = spec_of("S0T0O1C0W0").observation.template.split("{output}")
    assert prefix.strip()
    assert suffix.strip()
    assert words(prefix) + words(suffix) <= 20


def test_patches_reach_fields_by_path_and_things_by_name():
    base = paper_base()
    dotted = patched(base, {"prompt.sections.rules.text": "be brief.", "limits.max_turns": 9}, "test")
    nested = patched(
        base, {"prompt": {"sections": {"rules": {"text": "be brief."}}}, "limits": {"max_turns": 9}}, "test"
    )
    assert dotted == nested
    assert [section.text for section in dotted.prompt.sections] == [base.prompt.sections[0].text, "be brief."]
    assert dotted.limits.max_errors == base.limits.max_errors
    added = patched(base, {"prompt.sections.tone": {"text": "be kind."}}, "test")
    assert [section.name for section in added.prompt.sections] == ["role", "rules", "tone"]
    renamed = patched(base, {"tools.execute_bash": {"name": "sh", "alias_of": "execute_bash"}}, "test")
    assert [tool.name for tool in renamed.tools] == ["sh", "file_editor"]
    assert base == paper_base()


def test_users_add_levels_and_factors_by_toml(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        """
        extends = "paper"
        base.limits.max_turns = 12

        [[factors]]
        key = "S"
        [[factors.levels]]
        name = "terse"
        patch."prompt.sections" = [{ name = "all", text = "work." }]

        [[factors]]
        key = "L"
        title = "Turn limit"
        [[factors.levels]]
        name = "normal"
        [[factors.levels]]
        name = "hurry"
        patch.limits.max_turns = 5
        """
    )
    space, base = load_space(path)
    assert space.size == 4 * 81 * 2
    spec = compose(space, space.parse("S3T2O0C0W0L1"), base)
    assert render(spec, TASK)[0].content == "work."
    assert (base.limits.max_turns, spec.limits.max_turns) == (12, 5)
    assert len(paper_space()) == 243


def test_a_space_may_start_from_nothing(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[[factors]]\nkey = "A"\n[[factors.levels]]\nname = "one"\n')
    with pytest.raises(HarnessError, match=r"mine\.toml: base: prompt: Field required"):
        load_space(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends = ", "is not TOML"),
        ('extends = "paint"', r"extends: .*'paper'.*got \"paint\""),
        ('[[factors]]\nkey = "S"\nlevels = []', r"factors\.0\.levels: .*got \[\]"),
        (
            '[[factors]]\nkey = "S"\n[[factors.levels]]\nname = "x"\npatch.prompt.usr = "y"',
            r'factor S, level x: prompt\.usr: .*got "y"',
        ),
        ('[[factors]]\nkey = "S"\n[[factors.levels]]\nname = "direct"', "two levels named 'direct'"),
        ('[[factors]]\nkey = "S0"\n[[factors.levels]]\nname = "x"', "ASCII letters"),
        ("base.limits.max_turns = -1", r"base: limits\.max_turns: .*got -1"),
    ],
)
def test_a_bad_space_file_names_file_key_and_value(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text if "extends" in text else f'extends = "paper"\n{text}')
    with pytest.raises(HarnessError, match=message) as error:
        load_space(path)
    assert "mine.toml" in str(error.value)


def test_a_missing_space_file_is_named(tmp_path):
    with pytest.raises(HarnessError, match=r"nowhere\.toml"):
        load_space(tmp_path / "nowhere.toml")


def test_describe_shows_what_the_model_sees():
    spec = spec_of("S1T2O2C2W2")
    text = describe(spec, TASK)
    assert text == describe(spec, TASK)
    for message in render(spec, TASK):
        assert message.content in text
    for tool in spec.tools:
        assert f"{tool.name} ==\n{tool.description}" in text
    for part in ("<result tool=", "exit_code=", spec.workflow.plan_missing, spec.context.path, spec.content_hash):
        assert part in text
    assert "compaction" not in describe(spec_of("S0T0O0C0W0"))
