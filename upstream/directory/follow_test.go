package directory

import (
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/watch"
)

// When the directory is read.

func TestFilesAreReadAgainWhenTheyChangeMeanwhile(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.Start(key(scopes[1], clusterType, cache.Wildcard))
		swapped, opened := false, 0
		f.memory.set(map[string]string{"a.yaml": cluster("foo", "1"), "b.yaml": cluster("bar", "1")})
		f.memory.mu.Lock()
		f.memory.onOpen = func(name string) {
			if name == "b.yaml" {
				opened++
			}
			if opened == 2 && !swapped { // the first time it was only looked at
				swapped = true
				f.memory.set(map[string]string{"a.yaml": cluster("foo", "22"), "b.yaml": cluster("bar", "22")})
			}
		}
		f.memory.mu.Unlock()
		f.read()
		f.expect(t, "after a swap in the middle", "onprem/a Cluster: *=[bar=2 foo=2]")
	})
}

func TestDirectoryIsReadOnceItIsQuiet(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.write(map[string]string{"a.yaml": cluster("foo", "0")})
		f.memory.mu.Lock()
		f.memory.reads = nil
		f.memory.mu.Unlock()
		begin := time.Now()
		for range 5 {
			f.changes <- struct{}{}
			<-time.After(watch.Quiet / 2)
		}
		<-time.After(time.Second)
		f.reads(t, begin, 2*watch.Quiet+watch.Quiet) // the last change was at 4*watch.Quiet/2
	})
}

func TestDirectoryThatIsNeverQuietIsReadNevertheless(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.write(map[string]string{"a.yaml": cluster("foo", "0")})
		f.memory.mu.Lock()
		f.memory.reads = nil
		f.memory.mu.Unlock()
		begin := time.Now()
		for time.Since(begin) < watch.Patience+watch.Quiet/2 {
			f.changes <- struct{}{}
			<-time.After(watch.Quiet / 3)
		}
		f.reads(t, begin, watch.Patience)
	})
}

func TestDirectoryIsReadFromTimeToTimeWithoutNotice(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.write(map[string]string{"a.yaml": cluster("foo", "1")})
		f.Start(key(scopes[1], clusterType, "foo"))
		f.expect(t, "at first", "onprem/a Cluster: foo=1")
		f.memory.set(map[string]string{"a.yaml": cluster("foo", "2")})
		<-time.After(watch.Rescan - 2*watch.Quiet)
		f.expect(t, "before it is time", "")
		<-time.After(2 * watch.Quiet)
		f.expect(t, "after", "onprem/a Cluster: foo=2")
	})
}
