// Package prefetch subscribes to what clients will request next, before they do.
//
// A client requests a Listener, finds in it the name of a RouteConfiguration, requests that, finds the names of
// Clusters in it, and so on: at each level it waits until its own request has reached the control plane. But the
// relay reads the same resources on their way to the client. So a [Prefetcher] follows the references of the
// resources that clients watch (package graph), and watches in the cache the resources that they name. The client's
// request then finds the answer in the cache, or on its way there.
//
// # Ownership
//
// There is one Prefetcher, with one goroutine, and no state for each client. Clients to whom all names mean the same,
// and who may have the same, are one [Audience]. It counts how many of its streams watch each topic, but has only one
// node for a topic. So 10,000 clients with one Listener cost one prefetch.
//
// A node watches a topic. It is wanted while streams of its audience watch the topic themselves, and it stays for as
// long as they do. Otherwise it is ahead of the clients, and has a lease: it is removed when the lease has expired
// and no client has requested the topic. Then the topic lingers in the cache, as if a client had left it. A reference
// renews the lease of the node that it names, but at most up to the lease of the node that contains the reference. So
// no node outlives the resources that clients want, whatever its references are. There is no reference counting, and
// a loop leads to a node that exists already.
//
// While a resource is not in the cache, its node follows the references that the resource had when it was read last.
// So when a client returns to a Listener that the relay has given up, the relay requests the client's whole
// configuration at once. A name that has changed since then costs one useless request.
//
// # Bounds
//
// The control plane chooses the references. So there are bounds on the nodes that are ahead, for each scope and in
// total, on the references of one resource, and on the number of levels. A scope is prefetched from only if a client
// uses it already: a prefetch opens no stream to a control plane. References beyond a bound are left to the client's
// own requests.
package prefetch
