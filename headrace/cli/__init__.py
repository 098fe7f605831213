"""The command `headrace`: `entry` is its entry point, and `app` registers the verbs.

| module | verbs |
|---|---|
| `topology` | check, plan, up, down, status, wait |
| `components` | start, stop, split, merge, capture |
| `changes` | track, explain |
| `tables` | verify, copy, sequences |
| `errors` | errors list, show, edit, execute and delete; conflicts |
| `rehearsals` | simulate, chaos, demo |
| `administration` | doctor, certs, audit |

`options` has arguments that several verbs share, `deployments` opens the topology of a verb, and `verbs` has what all
verbs have in common.
"""
