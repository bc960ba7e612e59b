// Package loadreport sums what clients report of the load of their clusters (LRS), so that each
// control plane gets one stream of reports however many clients there are.
//
// A [Hub] has a [Collector] for each scope (authority and partition) to which somebody reports. A
// Collector has the [Sum] of what clients have reported and its control plane has not, and the [Ask]
// of the control plane: which clusters it wants reported, and how often. A [Client] is the stream of
// one client: its reports go to the collectors that their clusters belong to, and what it is asked
// for is the union of what their control planes ask for.
//
// The package has no I/O. The streams of clients are in package downstream, those to control planes in
// package upstream.
package loadreport
