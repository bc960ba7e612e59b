// Package propagation measures how long a change takes from the receipt of a control plane's response
// until clients have it.
//
// Each update of the cache that has a [Receipt] and changes something for clients is a [Change]. When the
// cache notifies its watchers, it counts the clients that have to receive the change. From then on,
// each client counts once as sent or as gone, and once as ACKed or as gone:
//
//	response ──▶ Receipt ──▶ Change: Expect(clients), Open ──▶ Sent, ACKed, or gone, for each client
//
// The relay counts a change as sent to a client when the whole response with the change is written to the
// connection ([Delivery]): gRPC accepts a response even if the client does not read.
//
// For each client, a change costs a few atomic additions and the Delivery. The clock is read only for three
// clients: the first one, the one with which half of the clients have the change, and the last one.
//
// A client that lags receives the newest state, without the steps in between. All changes that it has not
// received until then count as sent together: a [List] has them.
//
// Clients that do not read, or never answer, do not keep a change open forever. A change is given up after
// [Limit], or when [maxOpen] newer changes of its authority and type are open: the clients that do not have
// it then count as missed.
//
// The Tracker reports each measurement to an [Observer]. It also keeps the longest times of the last hour, in
// steps of [Step], for each authority and type: see History.
package propagation
