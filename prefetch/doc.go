// Package prefetch subscribes to what clients will request next, before they do.
//
// A client requests a Listener, finds in it the name of a RouteConfiguration, requests that, finds the
// names of Clusters in it, and so on: at each level it waits for its own request to reach the control
// plane. The relay reads the same resources on their way to the client. So a [Prefetcher] follows the
// references of those that clients watch (package graph), and watches in the cache what they name. The
// client's request then finds the answer there, or on its way.
//
// # Who owns what
//
// There is one Prefetcher, with one goroutine, and no state of a single client. Clients to whom all names
// mean the same, and who may have the same, are one [Audience]: their streams count what they watch, and
// whatever the count, there is one node for a topic. So 10,000 clients with one Listener cost one prefetch.
//
// A node watches a topic. It is wanted while streams of its audience watch the topic themselves, and then
// it is followed for as long as they do. Otherwise it is ahead of the clients, and has a lease: it goes when
// that has passed and no client has requested it. Then the topic lingers in the cache as one that a client
// has left. A reference renews the lease of what it names, but to no later than the lease of the resource
// that it is in. So nothing lives longer than what clients want, whatever refers to what: there are no
// counts of references, and a loop is a node that is there already.
//
// When a resource is not there yet, the names are followed that it had when it was read last: so a client
// that comes back to a Listener that the relay has given up has the whole of its configuration requested at
// once. What has been renamed since costs a request in vain.
//
// # Bounds
//
// A control plane makes up references. The nodes that are ahead are bounded for each scope and for all, the
// references of one resource are, and so is the number of levels. A scope is prefetched from only if a client
// uses it already: a prefetch opens no stream to a control plane. What is over a bound is left to the client's
// own request.
package prefetch
