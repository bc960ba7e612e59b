package client

// NodeID is the default Node id of the commands that only inspect a server (get, watch). A relay does
// not use the Node of such a client to represent a partition.
const NodeID = "xds-relay-cli"

// ErrorsAlone is a client feature of this project: a client that announces it does not take a response
// that has only errors for an empty answer. So the relay sends it errors at once.
const ErrorsAlone = "xds-relay.errors-alone"
