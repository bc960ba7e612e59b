// Package rollout decides which of a control plane's clients get a change, and when.
//
// A [Machine] runs the rollouts of one authority and partition, one after the other. It takes events and the time:
// the state of the control plane changed; a client joined, was sent the change, accepted it, rejected it, or died. It
// returns [Decision]s: show a client the new state, move all clients back, send the control plane a NACK, accept the
// new state. It is a value without goroutine, lock, clock or I/O.
//
// # What flows where
//
//	Changed ──▶ first clients of each cohort ──▶ steps ──▶ Accept: everybody
//	                 │ Rejected, Died               │
//	                 └───────▶ GoBack, SendNACK ◀───┘   the same content is not tried again
//
// At most two states exist: the accepted one and the new one. Clients get the accepted state unless a decision says
// otherwise. The machine does not know what the states contain. It knows only the content: a digest of what is new.
//
// # Rules
//
//   - The machine shows a client the new state only after the client has ACKed the accepted state (Settled). So the
//     first state that a client gets was always accepted.
//   - A step ends when its soak has passed and the clients that were sent the change have answered. Of the first
//     clients of each cohort, at least First must have accepted the change. A client that the change does not affect
//     (Untouched) does not count, so another client takes its place. After each soak, another client also takes the
//     place of a first client that does not answer. The first step waits at most 10 soaks for answers, a later one 3.
//   - A step that would show the change to no client is skipped. But if no client has accepted the change and all
//     clients have left, the first step waits up to 10 soaks for clients to return.
//   - A change that arrives during the first step joins the rollout. The first clients must accept it, too, and the
//     soak starts again until the step has lasted 10 soaks. After that, a joining change extends the step by only a
//     tenth of a soak, and after 20 soaks not at all. A change that arrives after the first step ends the rollout,
//     and another one begins. The caller holds back changes that can wait (Began), and holds back all changes once
//     rollouts have followed each other for 20 soaks (MayRestart).
//   - Rejections and deaths of clients that share an identity or address count once, unless most clients share it. An
//     identity or address that alone has stopped three rollouts is passed over: its clients are not among the first
//     clients if there are others, and their rejections do not count while other clients have the change.
//   - A client dies if its stream ends within a soak after the client was sent the change, and the client stays away
//     for a soak. A client that returns within that time gets the accepted state, and then the change once more. If
//     its stream ends again within a soak, that also counts as a death.
//   - Each rollout tries a client once. No rollout begins with content that was refused before. The machine remembers
//     the last 64 refused contents.
package rollout
