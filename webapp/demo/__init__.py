"""A demo project: seeded and simulated, for trying every page. Nobody wrote or trained anything in it:
`texts` composes prompts and responses, `annotators` judges them, `model_server` and `trainer` stand in for
the real ones, `project` takes all of it through the services that people use, and `showcase` adds what
rounds do not show: a conversation, traces, suggestions, a rubric, feedback."""
