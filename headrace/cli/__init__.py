"""The command `headrace`: `entry` is what the shell calls, `app` registers the verbs.

| module | verbs |
|---|---|
| `topology` | check, plan, up, down, status, wait |
| `components` | start, stop, split, merge, capture |
| `changes` | track, explain |
| `tables` | verify, copy, sequences |
| `errors` | errors list, show, edit, execute and delete; conflicts |
| `rehearsals` | simulate, chaos, demo |
| `administration` | doctor, certs, audit |

`options` has the arguments that several verbs take, `deployments` the topology that a verb is about, `verbs` what every
verb has in common.
"""
