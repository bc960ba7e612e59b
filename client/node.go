package client

// NodeID is the Node id of the commands that only look (get, watch) unless they are given
// another one. A relay does not let such a client's Node stand for a partition.
const NodeID = "xds-relay-cli"

// ErrorsAlone is a client feature of this project: a client that announces it does not take
// a response with nothing but errors for an empty answer, and so receives errors at once.
const ErrorsAlone = "xds-relay.errors-alone"
