// Package rollout decides who of a control plane's clients gets a change, and when.
//
// A [Machine] is one rollout after another of one authority and partition. Events and the time go
// in: the state of the control plane has changed, a client has come, was sent the change, took it,
// rejected it, or died. [Decision]s come out: which client is shown the new state, that all go back,
// the NACK for the control plane, and that the new state is accepted. It is a value without
// goroutine, lock, clock or I/O.
//
// # What flows where
//
//	Changed ──▶ first clients of each cohort ──▶ steps ──▶ Accept: everybody
//	                 │ Rejected, Died               │
//	                 └───────────▶ GoBack, Tell ◀───┘   the same content is not tried again
//
// Two states exist at most: the accepted one, which a client gets that the machine says nothing of,
// and the new one. The machine does not know what the
// states are; it knows a digest of what is new, the content.
//
// # Rules
//
//   - A client is shown the new state only after it has taken the accepted one (Settled). So nobody
//     gets a state first that was not accepted.
//   - A step is over when its soak is, and when those who have been sent the change have answered:
//     of the first clients of each cohort at least First must have taken it. A client that the
//     change does not concern (Untouched) proves nothing, so another one takes its place. So does
//     another one, after each soak, for a first client that does not answer. A step never takes
//     longer than 10 soaks for that.
//   - A step that would give nobody the change is left out. But if nobody has taken it and all clients have left, the
//     first step waits for them, for 10 soaks.
//   - What changes in the first step joins the rollout: it begins the soak anew, until the step has taken
//     10 soaks, and the first clients must take it, too. Then a tenth of a soak has to pass, and after 20
//     soaks nothing. What changes later ends the rollout, and another begins; the caller keeps back what
//     can wait (Began), and all if that has gone on for 20 soaks (BeginsAnew).
//   - Rejections and deaths of clients behind whom one identity or address stands count once, unless most
//     clients are that one's. One who has stopped three rollouts alone is passed over: its clients are not
//     among the first where others are, and their rejections do not count where others have the change.
//   - A death is a stream that ends within a soak after its client was sent the change, if the
//     client stays away for a soak. A client that comes back within that time gets the accepted
//     state, and then the change once more. If its stream ends again within a soak, that is a
//     death, too.
//   - A client is tried once in each rollout, and a rollout does not begin with content that was
//     refused. The last 64 refused contents are remembered.
package rollout
