"""What each phase is asked: templates, filled in one pass. Pure.

A template holds places such as ``{{FINDINGS}}``. What is put in is never looked at again, so a
request or a finding that itself holds ``{{PLAN}}`` stays as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

_PLACE = re.compile(r"\{\{(\w+)\}\}")

_EXPLORE = """\
Explore, and change nothing. Others will plan and do the work; you find out what they have to know.

<request>
{{REQUEST}}
</request>

Read only what bears on the request. Then report, in a page at most:
1. What is there: the files, functions and data that matter, each by its path or name.
2. How it works now, as far as the request touches it.
3. What has to be kept: callers, tests, conventions.
4. What is unclear or risky.
State what you have seen, not what is usual. Your report is all that the planner will get."""

_PLAN = """\
Plan the work, and change nothing. Whoever carries it out sees this plan, the findings and the \
request, and nothing else of what you have read.

<request>
{{REQUEST}}
</request>

<findings>
{{FINDINGS}}
</findings>

Look up what the findings leave open. Then write the plan:
1. The goal in one sentence, and what is out of scope.
2. The steps in order. Each names the file and the function, and says what changes there.
3. For each step, how to see that it is right: the test to run or to write, with the result.
4. What could break, and how that would be noticed.
A step that could be understood in two ways is not specific enough."""

_IMPLEMENT = """\
Carry out this plan.

<request>
{{REQUEST}}
</request>

<findings>
{{FINDINGS}}
</findings>

<plan>
{{PLAN}}
</plan>

Do what the plan says, and check each step as it says. Where the plan turns out to be wrong, do \
what the request needs and say so. End with a short account: what you changed, by file, what you \
ran, and what came of it. A reviewer will look at the work itself."""

_FIX = """\
Carry on with this work: a review found that it is not done.

<request>
{{REQUEST}}
</request>

<plan>
{{PLAN}}
</plan>

<account_of_the_work_so_far>
{{WORK}}
</account_of_the_work_so_far>

<review>
{{FIXES}}
</review>

Mend every point of the review, and check that it is mended. If a point is mistaken, show why. \
End with a short account of the whole work: what was changed, by file, what you ran, and what came \
of it."""

_REVIEW = """\
Review this work, and change nothing. Judge what is there, not what is claimed: read the files, \
and run the code and its tests yourself.

<request>
{{REQUEST}}
</request>

<plan>
{{PLAN}}
</plan>

<account_of_the_implementer>
{{WORK}}
</account_of_the_implementer>

It is done if the request is met, the plan is carried out as far as the request needs it, and what \
you ran has passed. If you are in doubt, it is not. End your answer with one JSON block like this:

```json
{"verdict": "NEEDS_FIX", "summary": "One sentence.", "findings": ["What is wrong, where, and how \
you saw it."]}
```

"verdict" is "DONE" or "NEEDS_FIX". Each finding is one thing to mend."""


class Prompts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The templates. Each may use the places that its phase has something for."""

    explore: str = _EXPLORE
    plan: str = _PLAN
    implement: str = _IMPLEMENT
    fix: str = _FIX
    """For the implementer, after a review that was not content."""
    review: str = _REVIEW

    def problems(self) -> list[str]:
        """Return the places that cannot be filled, and the templates that are empty."""
        found: list[str] = []
        for name, template in msgspec.structs.asdict(self).items():
            places = PLACES[name]
            if not template.strip():
                found.append(f"prompts: {name} is empty; it has to say what the phase is to do")
            found += [
                f"prompts: {name} holds {{{{{place}}}}}; there it can hold "
                + ", ".join(f"{{{{{each}}}}}" for each in places)
                for place in dict.fromkeys(_PLACE.findall(template))
                if place not in places
            ]
        return found


PLACES: dict[str, tuple[str, ...]] = {
    "explore": ("REQUEST",),
    "plan": ("REQUEST", "FINDINGS"),
    "implement": ("REQUEST", "FINDINGS", "PLAN"),
    "fix": ("REQUEST", "FINDINGS", "PLAN", "WORK", "FIXES"),
    "review": ("REQUEST", "FINDINGS", "PLAN", "WORK"),
}
"""What each template may hold."""


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return the template with its places filled, from left to right, once."""
    return _PLACE.sub(lambda place: values.get(place[1], place[0]), template)
