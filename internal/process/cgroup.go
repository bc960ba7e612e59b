package process

import (
	"bufio"
	"bytes"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// cgroupFiles are those of one version of cgroups. Linux: "Control Group v2", "Memory Resource
// Controller".
type cgroupFiles struct {
	root           string // where the hierarchy is mounted
	limit, current string
	// dropped are the keys in memory.stat of what the kernel can drop.
	dropped []string
}

var (
	cgroupV2 = cgroupFiles{"sys/fs/cgroup", "memory.max", "memory.current", []string{"active_file", "inactive_file"}}
	cgroupV1 = cgroupFiles{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", []string{"total_active_file", "total_inactive_file"}}
)

// CgroupMemory returns a function that reads the memory of the process's cgroup, or of the one
// around it that has the smallest limit. root is that of the file system. Without cgroups there is
// no limit.
func CgroupMemory(root string) func() Usage {
	type group struct {
		files cgroupFiles
		dir   string
	}
	var groups []group
	for _, g := range cgroups(root, "memory") {
		files := cgroupV1
		if g.v2 {
			files = cgroupV2
		}
		groups = append(groups, group{files, filepath.Join(root, files.root, g.path)})
	}
	return func() (tightest Usage) {
		for _, g := range groups {
			limit, ok := readNumber(filepath.Join(g.dir, g.files.limit))
			if !ok || limit == 0 || limit >= 1<<62 || tightest.Limit != 0 && limit >= tightest.Limit { // v1 says so where there is none
				continue
			}
			used, ok := readNumber(filepath.Join(g.dir, g.files.current))
			if !ok {
				continue
			}
			used -= min(used, droppable(filepath.Join(g.dir, "memory.stat"), g.files.dropped))
			tightest = Usage{Used: used, Limit: limit}
		}
		return tightest
	}
}

// CgroupLimitsCPU reports whether the process's cgroup, or one around it, has a limit on CPU time. root is that of the
// file system. Linux: "Control Group v2", "CPU Interface Files".
func CgroupLimitsCPU(root string) bool {
	for _, g := range cgroups(root, "cpu") {
		if g.v2 {
			text, err := os.ReadFile(filepath.Join(root, cgroupV2.root, g.path, "cpu.max"))
			if err == nil && !bytes.HasPrefix(text, []byte("max")) {
				return true
			}
		} else if _, ok := readNumber(filepath.Join(root, "sys/fs/cgroup/cpu", g.path, "cpu.cfs_quota_us")); ok {
			return true // without a limit it is -1
		}
	}
	return false
}

// cgroup is one of the cgroups that hold the process, in the hierarchy of a controller.
type cgroup struct {
	v2   bool
	path string
}

// cgroups returns the process's cgroup of a controller, and those around it.
func cgroups(root, controller string) (all []cgroup) {
	member, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup")) // none, where there are no cgroups
	for line := range strings.Lines(string(member)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		v2 := fields[0] == "0" && fields[1] == ""
		if !v2 && !strings.Contains(","+fields[1]+",", ","+controller+",") {
			continue
		}
		// In a container the path may be that of the host, which is not mounted here.
		for dir := path.Clean("/" + fields[2]); ; dir = path.Dir(dir) {
			all = append(all, cgroup{v2, dir})
			if dir == "/" {
				break
			}
		}
	}
	return all
}

// readNumber reads a file with one number in it. "max" is none.
func readNumber(file string) (n uint64, ok bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	n, err = strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64)
	return n, err == nil
}

// droppable adds up some of the lines of memory.stat.
func droppable(file string, keys []string) (sum uint64) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), " ")
		for _, k := range keys {
			if n, err := strconv.ParseUint(value, 10, 64); k == key && err == nil {
				sum += n
			}
		}
	}
	return sum
}
