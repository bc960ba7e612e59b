package process

import (
	"bytes"
	"errors"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

func TestMemoryLimitIsTheContainersUnlessOneIsGiven(t *testing.T) {
	const before, container = 3 << 30, 1000 << 20
	for _, tt := range []struct {
		name      string
		env       map[string]string
		container memlimit.Provider
		want      int64
		line      string
	}{
		{"a container's", nil, memlimit.Limit(container), container * 9 / 10, `level=INFO msg="memory limit" limit=900MiB from=cgroup`},
		{"a part of it", map[string]string{"AUTOMEMLIMIT": "0.5"}, memlimit.Limit(container), container / 2, `level=INFO msg="memory limit" limit=500MiB from=cgroup`},
		{"given", map[string]string{"GOMEMLIMIT": "3GiB"}, memlimit.Limit(container), before, `level=INFO msg="memory limit" limit=3072MiB from=GOMEMLIMIT`},
		{"off", map[string]string{"AUTOMEMLIMIT": "off"}, memlimit.Limit(container), before, `level=INFO msg="memory limit" limit=3072MiB from=AUTOMEMLIMIT`},
		{"none", nil, func() (uint64, error) { return 0, memlimit.ErrNoLimit }, math.MaxInt64, `level=INFO msg="memory limit" limit=none from=cgroup`},
		{"no part", map[string]string{"AUTOMEMLIMIT": "90%"}, memlimit.Limit(container), before, `level=WARN msg="the memory limit is not set" reason="cannot parse AUTOMEMLIMIT: 90%"`},
		{"unreadable", nil, func() (uint64, error) { return 0, errors.New("no") }, before, `level=WARN msg="the memory limit is not set" reason="failed to set GOMEMLIMIT: no"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, key := range []string{"GOMEMLIMIT", "AUTOMEMLIMIT"} {
				t.Setenv(key, "") // so that it is as before afterwards
				_ = os.Unsetenv(key)
				if v, ok := tt.env[key]; ok {
					t.Setenv(key, v)
				}
			}
			was := debug.SetMemoryLimit(before) // as the runtime has it from GOMEMLIMIT
			defer debug.SetMemoryLimit(was)
			var log bytes.Buffer
			LimitMemory(slog.New(slog.NewTextHandler(&log, nil)), tt.container)
			if got := debug.SetMemoryLimit(-1); got != tt.want {
				t.Errorf("the limit is %d, want %d", got, tt.want)
			}
			if _, line, _ := strings.Cut(strings.TrimSpace(log.String()), " "); line != tt.line {
				t.Errorf("got\n%s\nwant\n%s", line, tt.line)
			}
		})
	}
}
