// Package store keeps on disk the resources that the relay has accepted from control planes. A relay that starts
// while its control planes are unreachable can serve them.
//
// A [Store] is an embedded database (bbolt). Sources note changes ([Store.Note]), at the cost of an entry in a map.
// One goroutine writes the newest state of everything noted, at most 200 ms later, in transactions. So a slow, full
// or missing disk delays nothing: notes wait, one for each resource, until the disk accepts them. The database
// survives an end of the process at any moment.
//
// The store reads nothing into memory in advance: it finds each record by its topic and name.
//
// # Records
//
//	entry   the resource of one name
//	set     a marker that a wildcard or a glob was completely known, and its version
//	member  one resource of a set, or a marker for a member that may not be stored
//
// The key of a record is a hash of its topic and name, so the members of a set are adjacent. A record contains its
// topic and name again, the resource, when it arrived and from which server, and a checksum over both key and
// content. With a key file everything is encrypted (XChaCha20-Poly1305) with the record's key as associated data, and
// the hash is a keyed one. So nobody can read, change or swap records, or see names.
//
// # The journal
//
// Since the keys are hashes, each change is on a different page: in a burst of changes, a transaction would write a
// page of 4 KiB for each. So a transaction writes its changes as one part of a journal, in the same database. From
// time to time, the store moves the newest state of everything in the journal to its place, in the order of the keys,
// and empties the journal (journal.go). Readers see records with the journal's changes applied.
//
// # Another key
//
// [Store.Rekey] writes all records to another file with another key. That file then replaces the first one.
//
// The store does not record that a resource does not exist: an earlier answer of that kind must not be given to
// clients while the control plane is unreachable.
//
// # A file that cannot be read
//
// bbolt trusts its file. So the store verifies the file's structure before bbolt opens it (verify.go), and each
// record when it reads it. A file that cannot be used is renamed, never deleted, and the store starts empty. The
// store ignores a record that cannot be read. A file that is damaged while it is open is replaced (broken.go).
package store
