package watch

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWhenFilesAreReadAgain(t *testing.T) {
	for _, tt := range []struct {
		name    string
		changes []time.Duration // since the last reading
		want    time.Duration
	}{
		{"without a notice", nil, Rescan},
		{"after one change", []time.Duration{time.Second}, time.Second + Quiet},
		{"after the last of several", []time.Duration{0, Quiet / 2, Quiet}, 2 * Quiet},
		{"while they change all the time", []time.Duration{0, Patience / 20, Patience * 2 / 20, Patience * 3 / 20, Patience * 4 / 20, Patience * 5 / 20,
			Patience * 6 / 20, Patience * 7 / 20, Patience * 8 / 20, Patience * 9 / 20, Patience * 10 / 20, Patience * 11 / 20, Patience * 12 / 20,
			Patience * 13 / 20, Patience * 14 / 20, Patience * 15 / 20, Patience * 16 / 20, Patience * 17 / 20, Patience * 18 / 20, Patience * 19 / 20, Patience}, Patience},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				changes, began := make(chan struct{}, 1), time.Now()
				for _, at := range tt.changes {
					time.AfterFunc(at, func() {
						select {
						case changes <- struct{}{}:
						default:
						}
					})
				}
				if !UntilChanged(t.Context(), changes) || time.Since(began) != tt.want {
					t.Errorf("they are read after %v, want %v", time.Since(began), tt.want)
				}
			})
		})
	}
}

func TestNothingIsReadAfterTheEnd(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	if UntilChanged(ended, nil) {
		t.Error("files are to be read after the end")
	}
}

// In the folders above, only the folders themselves matter.
func TestWatcherHearsOfItsFoldersOnly(t *testing.T) {
	above := t.TempDir()
	w := New(slog.New(slog.DiscardHandler), filepath.Join(above, "first"), filepath.Join(above, "first", "inner"))
	defer run(t, w)()
	for path, want := range map[string]bool{
		"first": true, "first/a": true, "first/inner": true, "first/inner/a": true,
		"a": false, "other": false, "other/a": false, "first/deep/a": false, "first2": false,
	} {
		if got := w.concerns(filepath.Join(above, path)); got != want {
			t.Errorf("%s concerns it: %t, want %t", path, got, want)
		}
	}
}

func TestWatcherHearsOfAFolderThatComesLater(t *testing.T) {
	first := t.TempDir()
	second := filepath.Join(t.TempDir(), "second")
	w := New(slog.New(slog.DiscardHandler), first)
	defer run(t, w)()
	heard := func(what string) {
		t.Helper()
		select {
		case <-w.Changes():
		case <-time.After(Rescan / 2):
			t.Fatalf("the watcher did not hear of %s", what)
		}
	}
	write := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(first, "a"))
	heard("a file")
	w.Add(second)
	if err := os.Mkdir(second, 0o700); err != nil {
		t.Fatal(err)
	}
	heard("the new folder")
	w.Arm()
	for quiet := false; !quiet; { // a change is several events
		select {
		case <-w.Changes():
		case <-time.After(Quiet):
			quiet = true
		}
	}
	write(filepath.Join(second, "a"))
	heard("a file in the new folder")
}

// run runs w until the function that it returns is called.
func run(t *testing.T, w *Watcher) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); w.Run(ctx) }()
	return func() { cancel(); <-ended }
}
