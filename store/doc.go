// Package store keeps on disk what the relay has accepted from control planes, so that a relay
// that starts while they are away can serve it.
//
// A [Store] is an embedded database (bbolt). Sources note what has changed ([Store.Note]), which
// costs an entry in a map; one goroutine writes the newest state of everything noted, at most 200 ms
// later, in transactions. So a disk that is slow, full or gone delays nobody: what is to be
// written waits, each resource once, and is written when the disk takes it. The database
// survives the end of the process at any moment.
//
// Nothing is read into memory before it is wanted: a record is found by its topic and name.
//
// # Records
//
//	entry   the resource of one name
//	set     says that a wildcard or a glob was known as a whole, and its version
//	member  one resource of a set; or, of one that may not be stored, that there is one
//
// The key of a record is a hash over its topic and name, so that members of a set are beside
// each other. What a record has in it is its topic and name again, the resource, when it came and
// from which server, and a checksum over both key and content. With a key file everything is
// encrypted (XChaCha20-Poly1305) with the record's key as associated data, and the hash is a keyed
// one. So records cannot be read, changed or swapped, and names do not show.
//
// # The journal
//
// Since the keys are hashes, each change is on a page of its own: in a storm, a transaction would
// write a page of 4 KiB for each. So a transaction writes what it changes as one part of a journal, in the same
// database. Now and then the newest state of everything in the journal is put where it belongs, in the order of the
// keys, and the journal is empty again (journal.go). Who reads sees the records as they are with the journal.
//
// # Another key
//
// [Store.Rekey] writes all records to another file with another key, which then takes the place of the first one.
//
// What does not exist is not stored: that a control plane once said so is nothing to tell a client
// while it is away.
//
// # A file that cannot be read
//
// bbolt trusts its file. So the file's structure is verified before bbolt opens it
// (verify.go), and each record when it is read. A file that cannot be used is renamed, never
// deleted, and the store begins empty. A record that cannot be read is as if it were not
// there.
package store
