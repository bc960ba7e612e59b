//go:build linux || darwin

package process

import (
	"syscall"
	"testing"
)

func TestThereAreNoCoreDumps(t *testing.T) {
	if err := ForbidCoreDumps(); err != nil {
		t.Fatal(err)
	}
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_CORE, &l); err != nil || l.Cur != 0 {
		t.Errorf("a core dump may have %d bytes: %v", l.Cur, err)
	}
}
