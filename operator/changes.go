package operator

// What a configuration would change, as POST /check shows it.

import (
	"errors"

	"github.com/xds-relay/xds-relay/configs"
)

// Changes is what a configuration would change in the running relay, as POST /check returns it.
type Changes struct {
	// Running is the hash of the running configuration, and Checked that of the checked one.
	Running string `json:"running"`
	Checked string `json:"checked,omitempty"`
	// Errors are the reasons why it cannot be loaded. If there are any, the other fields are empty.
	Errors   []ConfigError `json:"errors,omitempty"`
	Warnings []ConfigError `json:"warnings,omitempty"`

	Listeners   []ListenerChange  `json:"listeners,omitempty"`
	Authorities []AuthorityChange `json:"authorities,omitempty"`
	// Keys are the other parts of the configuration that differ, such as rights.
	Keys    []string       `json:"keys,omitempty"`
	Streams *StreamChanges `json:"streams,omitempty"`
	Names   *NameChanges   `json:"names,omitempty"`
}

// ConfigError is a mistake in a configuration.
type ConfigError struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Key     string `json:"key,omitempty"`
	Problem string `json:"problem"`
}

// String returns the mistake with its place, on one line.
func (e ConfigError) String() string {
	return configs.Error{File: e.File, Line: e.Line, Column: e.Column, Path: e.Key, Err: errors.New(e.Problem)}.Error()
}

// Kinds of changes of a listener or an authority.
const (
	ChangeAdded   = "added"
	ChangeRemoved = "removed"
	ChangeChanged = "changed"
)

// ListenerChange is a change of a listener.
type ListenerChange struct {
	Address string `json:"address"`
	Change  string `json:"change"` // added, removed or changed
	// Keys are the keys that differ.
	Keys []string `json:"keys,omitempty"`
	// NewConnections says that the changes hold for new connections only, and that the relay asks clients to open
	// them (GOAWAY). Otherwise they hold for the next stream.
	NewConnections bool `json:"new_connections,omitempty"`
	// Streams counts the open streams of the listener's clients.
	Streams int `json:"streams"`
}

// AuthorityChange is a change of an authority.
type AuthorityChange struct {
	Authority string   `json:"authority"`
	Change    string   `json:"change"` // added, removed or changed
	Keys      []string `json:"keys,omitempty"`
	// NewStreams says that the relay opens the streams to its control planes, or its directory, again.
	NewStreams bool `json:"new_streams,omitempty"`
}

// StreamChanges are the clients' streams, and how many of them would end.
type StreamChanges struct {
	Open int `json:"open"`
	// EndWithListener counts the streams that would end because their listener is gone, and EndNotAdmitted those
	// whose client the listener does not admit any more.
	EndWithListener int `json:"end_with_listener"`
	EndNotAdmitted  int `json:"end_not_admitted"`
}

// NameChanges counts the names, globs and wildcards to which clients are subscribed, once for each stream.
type NameChanges struct {
	// Complete says that all were counted. Otherwise the numbers are lower bounds: the time was too short, or a
	// stream has too many names.
	Complete bool `json:"complete"`
	Counted  int  `json:"counted"`
	// Move counts names that would be served from another authority, partition or view. Moves has the places, the
	// most frequent first.
	Move  int    `json:"move"`
	Moves []Move `json:"moves,omitempty"`
	// Denied counts names that their clients may have now, but would not have by rights or the listener's secrets.
	// Lost counts names that are served now, but would not be because no authority or rule covers them.
	Denied int `json:"denied"`
	Lost   int `json:"lost"`
	// Allowed counts names that are refused now, but would be served.
	Allowed int `json:"allowed"`
}

// Move counts the names that would be served from another place.
type Move struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Names int    `json:"names"`
}
