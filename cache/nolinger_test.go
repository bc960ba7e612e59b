package cache

import (
	"slices"
	"testing"
	"testing/synctest"
)

type noteSource struct{ notes []string }

func (f *noteSource) Start(k Key) { f.notes = append(f.notes, "start "+k.Name) }
func (f *noteSource) Refresh(Key) {}
func (f *noteSource) Stop(k Key)  { f.notes = append(f.notes, "stop "+k.Name) }

type oneWatch struct{ Watch }

func (*oneWatch) Changed() Waker { return nil }

func TestWithoutLingerATopicEndsWithItsLastWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &noteSource{}
		c := New(f, Options{IdleEntries: 100, IdleScopes: 100})
		defer c.Close()
		var first, second oneWatch
		k := Key{TypeURL: "type", Name: "a"}
		c.Watch(k, &first)
		c.Watch(k, &second)
		c.Unwatch(&first)
		synctest.Wait()
		if want := []string{"start a"}; !slices.Equal(f.notes, want) {
			t.Errorf("got %q, want %q", f.notes, want)
		}
		c.Unwatch(&second)
		synctest.Wait()
		if want := []string{"start a", "stop a"}; !slices.Equal(f.notes, want) || c.Stats().Entries != 0 {
			t.Errorf("got %q, want %q", f.notes, want)
		}
	})
}
