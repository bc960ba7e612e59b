// Package guard keeps members that a source has lost. Without it, the relay would at once believe a control plane
// that restarts with half of its state, another server that has fewer resources, or a directory that was emptied.
// With it, members of a wildcard, a glob or a list collection stay for a while if many of them, or all, would go at
// once.
//
//	machine      decides which members of which sets are held: it takes sets and updates, and
//	             returns the updates to pass on; it has no goroutine, lock, clock or I/O
//	references   what the held members refer to: it is held with them, or restored if it went a moment before
//	contents     earlier contents of resources that lost many parts: another machine, with what the source says
//	Guard        asks the cache what an update removes, passes that to the machine, counts and logs; package feed calls it
//	Stats        the counters of an authority's guards
//
// The source marks its updates ([cache.Answer]). The guard checks first answers, and with [Options.Always] also later
// ones. A first answer removes the members that the cache had ([cache.Cache.Before]) and that the answer lacks or
// names as removed. There are four outcomes:
//
//	few removed       they go at once, and count for the rest of the first answers
//	many or all       the guard holds them: the cache sees no change
//	back while held   the cache still sees no change
//	replaced          another member has the address of a Listener, the key of a scope, or the domain of a virtual
//	                  host: clients cannot have both, so the lost or held one goes at once, and does not count
//
// A held member goes when [Options.Hold] has passed and the source has not sent it again. If the source is
// unreachable at that time, the guard waits until it answers. Repeated removals, and removals on several streams, do
// not change the time: it counts from the first removal.
//
// In the same answers the guard counts the parts that resources lose, such as virtual hosts and the endpoints of
// ClusterLoadAssignments. If many would go, the earlier content of these resources is held in the same way.
//
// Everything else passes at once: other changes, new members, the end of a TTL, and the removal of resources that clients
// may no longer have (PERMISSION_DENIED).
//
// The source does not notice: held members do not count as its own. So the relay does not list them in
// initial_resource_versions, and a control plane that has them again sends them.
package guard
