// Package guard keeps what a source has lost. A control plane that comes back half empty, another
// server that has less, or a folder that was emptied would be believed at once without it. So
// members of a wildcard, a glob or a list collection stay for a while, if many of them would go at
// once, or all.
//
//	machine   which members of which sets are held: sets and updates go in, what becomes of the
//	          updates comes out; it has no goroutine, lock, clock or I/O
//	Guard     stands between a source and the cache, with the clock
//	Stats     what an authority's guards count
//
// The source marks its updates ([cache.Answer]). Those of a first answer are guarded, with
// [Options.Always] also later ones. A first answer removes whatever it does not have, or names as
// removed, and the cache had before ([cache.Cache.Removals]). There are three outcomes:
//
//	few go            they go at once, and count for the rest of the first answers
//	many go, or all   the guard holds them: for the cache nothing has happened
//	named again       while they are held: still nothing has happened
//
// What is held goes when [Options.Hold] has passed and the source has not said otherwise. A source
// that cannot be reached then says nothing, so the guard waits until it answers. It does not matter
// how often the source says so in between, or on how many streams: the time counts from the first.
//
// Everything else passes at once: changes, new members, the end of a TTL, and the removal of what
// clients may not have any more (PERMISSION_DENIED).
//
// Nothing of this is seen by who gives resources: what is held is not a part of what the source
// has. So it is not listed in initial_resource_versions, and a control plane that has it again sends
// it.
package guard
