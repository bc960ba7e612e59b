// Package propagation measures how long a change takes from the receipt of a control plane's response
// until clients have it.
//
// Each update of the cache that has a [Receipt] and changes something for clients is a [Change]. When the
// cache notifies its watchers, it is known how many clients the change is for. From then on
// each client counts once as sent or as gone, and once as ACKed or as gone:
//
//	response ──▶ Receipt ──▶ Change: Expect(clients), Open ──▶ Sent, ACKed, or gone, of each client
//
// A client counts as sent a change when all of the response with it was written ([Delivery]): gRPC takes a response
// though the client does not read.
//
// What a client costs is a few atomic additions for each, and the Delivery. The clock is read only by the clients that the
// measurement is about: the first one, the one with which half of them have the change, and the last one.
//
// A client that lags is sent the newest state, without the steps in between. All changes that it had not been
// sent count as sent then: a [List] has them.
//
// Clients that do not read, or never answer, do not keep a change open for ever. After [Limit] or, of one
// authority and type, when [maxOpen] newer ones are open, a change is given up: the clients that do not have
// it count as not reached.
//
// An [Observer] is given each measurement. A Tracker also keeps the longest times of the last hour, in steps of
// [Step], for each authority and type: its History.
package propagation
