// Package history keeps the last changes of what clients are served, and what was done to the relay, so that an
// operator sees what has changed.
//
// There is one hook, at the end of the corridor: the feed calls [Log.Record] with each update that the cache has just
// stored, and with what the cache had before. An [Entry] is what one response changed of one type in one scope. It
// keeps pointers to the old and the new resource of each name: the bytes are those of the cache, and live on until the
// entry falls out. Nothing is compared or rendered before somebody reads it.
//
// What was done (a reload, a failover, an approval) is in the log anyway. [History.Handler] keeps each line that has
// the attribute [EventKey], with the line's own words.
//
// # What fills it, and what bounds it
//
//   - Clients make up names, and each name has a first answer. First answers are counted and not kept one by one: those
//     of one type and scope within a second are one entry, and they have a ring of their own, so that they push out no
//     changes.
//   - A control plane can change everything all the time. Each authority has its own rings: see [share]. After
//     [apart] entries within a second, further responses of the second are added to the entry of their type
//     and scope, with the first old and the last new content of each name.
//   - A response with many changes: [mostNames] are kept with their names, the others are counted.
//   - Contents count with all their bytes, also where the cache has them too. Those above [mostContent] are not kept.
//   - Secrets: of a resource that has one, only that it changed is kept.
//   - Lines of the log: their number and length is bounded, and the packages that log them bound how often they do.
//
// # Locks
//
// The lock of a ring comes last. A writer holds it to append one entry. A reader holds it to copy pointers: entries do
// not change after [settles], and those that may are copied.
package history
