package upstream

import (
	"log/slog"
	"slices"
	"time"

	"github.com/xds-relay/xds-relay/upstream/session"
)

// What a control plane does not answer is a line of log when that begins, when there is more of it, and when it ends. It
// is in the Stream's status while it lasts. As long as everything is answered, this costs nothing.

// QuietType is what of a type a control plane does not answer.
type QuietType struct {
	TypeURL string
	// Topics is the number of names and wildcards without an answer. LeftOut counts those of them that are left out of
	// requests, because the control plane answers only requests of which it has every name. Newest has the names of the
	// newest, shortened.
	Topics, LeftOut int
	Newest          []string
	Since           time.Time
}

const (
	// maxQuietTypes bounds the types of a Stream that are shown.
	maxQuietTypes = 16
	// quietPace is the shortest time between two looks at a type, and quietShare bounds their time: to one part in so
	// many.
	quietPace  = time.Second
	quietShare = 20
)

// quiet is what is known of a type.
type quiet struct {
	topics, leftOut int
	since           time.Time
	next            time.Time // when it may be looked at again
}

// lookAtQuiet finds out what of a type the control plane does not answer. It returns when it must be called again, zero
// for when something happens to the type. The caller holds mu.
func (s *Stream) lookAtQuiet(f *feed) (again time.Time) {
	now := time.Now()
	switch {
	case f.quiet.topics == 0 && !f.topics.IsQuiet():
		return time.Time{}
	case now.Before(f.quiet.next):
		return f.quiet.next
	}
	q := f.topics.Quiet()
	f.quiet.next = now.Add(max(quietPace, quietShare*time.Since(now)))
	s.showQuiet(f, &q)
	return time.Time{}
}

// showQuiet logs and posts what of a type the control plane does not answer. The caller holds mu.
func (s *Stream) showQuiet(f *feed, q *session.Quiet) {
	before, names := f.quiet, shownAll(q.Newest)
	if before.topics == 0 && q.Topics == 0 {
		return
	}
	f.quiet.topics, f.quiet.leftOut = q.Topics, q.LeftOut
	if before.topics == 0 {
		f.quiet.since = time.Now()
	}
	if q.Topics > before.topics || q.LeftOut > before.leftOut {
		log, level := bounded(&s.lines.quiet, s.own)
		log.Log(s.ctx, level, "control plane does not answer what is requested",
			"type_url", shown(f.typeURL()), "topics", q.Topics, "left_out", q.LeftOut, "newest", names)
	}
	if len(q.Answered) > 0 || q.Topics == 0 {
		log, level := bounded(&s.lines.answered, s.own)
		log.Log(s.ctx, min(level, slog.LevelInfo), "control plane has answered what it did not, or nobody requests it any more",
			"type_url", shown(f.typeURL()), "topics_left", q.Topics, "answered", shownAll(q.Answered))
	}
	s.board.post(func(st *Status) {
		st.Quiet = slices.DeleteFunc(slices.Clone(st.Quiet), func(t QuietType) bool { return t.TypeURL == f.typeURL() })
		if q.Topics > 0 && len(st.Quiet) < maxQuietTypes {
			st.Quiet = append(st.Quiet, QuietType{TypeURL: f.typeURL(), Topics: q.Topics, LeftOut: q.LeftOut, Newest: names, Since: f.quiet.since})
		}
	})
}

// shownAll is shown for some names.
func shownAll(names []string) (all []string) {
	for _, name := range names {
		all = append(all, shown(name))
	}
	return all
}
