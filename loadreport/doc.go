// Package loadreport sums clients' load reports on their clusters (LRS), so that each control plane gets one stream
// of reports, however many clients there are.
//
// A [Hub] has a [Collector] for each scope (authority and partition) to which any client reports. A Collector has the
// [Sum] of the reports that were not sent to its control plane yet, and the control plane's [Ask]: which clusters it
// requests reports on, and how often. A [Client] is the stream of one client. Its reports go to the collectors of
// their clusters, and the relay asks it for the union of what their control planes request.
//
// All clients add to one sum. Requests in progress are subtracted again with the client's next report, or when it leaves,
// so the newest ones of each client are kept. A cluster or locality that the sum does not have yet counts for the memory
// of the client that reported it, until the sum is sent.
//
// The package has no I/O. The streams of clients are in package downstream, those to control planes in
// package upstream.
package loadreport
