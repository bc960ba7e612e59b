package process

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Garbage does not count; and what is known of it is as new as a collection at most five seconds ago.
func TestMemoryIsAboveItsShareWithoutGarbage(t *testing.T) {
	for _, tt := range []struct {
		name                 string
		used, limit, garbage uint64
		share                float64
		above                bool
		collections          int64
	}{
		{"no limit", 1000, 0, 0, 0.9, false, 0},
		{"far below", 500, 1000, 0, 0.9, false, 0},
		{"live", 900, 1000, 0, 0.9, true, 1},
		{"garbage", 950, 1000, 60, 0.9, false, 1},
		{"more garbage than is used", 950, 1000, 2000, 0.9, false, 1},
		{"another share", 500, 1000, 0, 0.5, true, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var collections atomic.Int64
				m := NewMemory(func() Usage { return Usage{Used: tt.used, Limit: tt.limit} })
				m.garbage = func() uint64 { return tt.garbage }
				m.collect = func() { collections.Add(1) }
				for range 10 {
					if got := m.Above(tt.share); got != tt.above {
						t.Errorf("got %t, want %t", got, tt.above)
					}
					time.Sleep(collectEvery / 20)
				}
				synctest.Wait()
				if n := collections.Load(); n != tt.collections {
					t.Errorf("%d collections, want %d", n, tt.collections)
				}
			})
		})
	}
}

func TestMemoryIsLookedAtOnlySoOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		m := NewMemory(func() Usage { looks++; return Usage{} })
		for range 1000 {
			m.Above(0.9)
			time.Sleep(time.Millisecond)
		}
		if looks != 10 {
			t.Errorf("%d looks in a second, want 10", looks)
		}
	})
}

// TestCgroupMemory: the group with the smallest limit counts, and files that the kernel can drop do
// not.
func TestCgroupMemory(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  Usage
	}{
		{"none", nil, Usage{}},
		{"v2, in a container", map[string]string{
			"proc/self/cgroup":             "0::/\n",
			"sys/fs/cgroup/memory.max":     "1000\n",
			"sys/fs/cgroup/memory.current": "700\n",
			"sys/fs/cgroup/memory.stat":    "anon 500\nfile 300\nactive_file 40\ninactive_file 60\nslab 100\n",
		}, Usage{600, 1000}},
		{"v2, a limit further out", map[string]string{
			"proc/self/cgroup":                         "0::/pods/one/relay\n",
			"sys/fs/cgroup/pods/one/relay/memory.max":  "max\n",
			"sys/fs/cgroup/pods/one/memory.max":        "1000\n",
			"sys/fs/cgroup/pods/one/memory.current":    "700\n",
			"sys/fs/cgroup/pods/memory.max":            "5000\n",
			"sys/fs/cgroup/pods/memory.current":        "4900\n",
			"sys/fs/cgroup/pods/one/memory.stat":       "",
			"sys/fs/cgroup/pods/one/relay/memory.stat": "active_file 9999\n",
		}, Usage{700, 1000}},
		{"v1", map[string]string{
			"proc/self/cgroup":                           "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n1:name=systemd:/y\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "2000\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes": "800\n",
			"sys/fs/cgroup/memory/memory.stat":           "active_file 1\ntotal_active_file 100\ntotal_inactive_file 200\n",
		}, Usage{500, 2000}},
		{"v1 without a limit", map[string]string{
			"proc/self/cgroup":                           "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes": "800\n",
		}, Usage{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range tt.files {
				file := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := CgroupMemory(root)(); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}
