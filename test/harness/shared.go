package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Shared is a cluster that tests of one package use one after another, or at the
// same time where they leave its components alone: starting one costs seconds of
// processor time. Each test works in logical clusters of its own. The cluster
// starts for the first test that asks for it and ends with the package, for which
// the package's TestMain calls Main.
type Shared struct {
	// Options shape the cluster. They are not changed once a test has asked for it.
	Options Options

	mu      sync.Mutex
	scope   *packageScope
	cluster *Cluster
	users   map[string]bool
}

// ClusterEnv names the environment variable with the working directory of a running
// `shardplane dev`, which Shared.Get returns instead of starting a cluster.
const ClusterEnv = "SHARDPLANE_CLUSTER"

// Get returns the cluster, whose methods fail t. A test that asks a second time,
// as with -count=2, gets a new cluster, without what the first run left there.
func (s *Shared) Get(t testing.TB) *Cluster {
	t.Helper()
	if dir := os.Getenv(ClusterEnv); dir != "" {
		return &Cluster{Dir: dir, External: true, t: t}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users[t.Name()] {
		require.NoError(t, s.scope.end())
		s.cluster, s.users = nil, nil
	}
	if s.cluster == nil {
		s.scope = newPackageScope(t)
		defer s.scope.started()
		s.cluster, s.users = Start(s.scope, s.Options), map[string]bool{}
	}
	s.users[t.Name()] = true
	return s.cluster.seenBy(t)
}

// seenBy returns the same cluster with methods that fail t.
func (c *Cluster) seenBy(t testing.TB) *Cluster {
	t.Helper()
	same := &Cluster{Dir: c.Dir, t: t}
	for _, component := range c.components {
		same.components = append(same.components, &Component{Name: component.Name, URL: component.URL, t: t, life: component.life})
	}
	return same
}

var (
	scopesMu sync.Mutex
	// scopes are those that have not ended.
	scopes []*packageScope
)

// endScopes ends what the tests of the package have shared.
func endScopes() error {
	scopesMu.Lock()
	last := scopes
	scopesMu.Unlock()
	var errs []error
	for _, s := range slices.Backward(last) {
		errs = append(errs, s.end())
	}
	return errors.Join(errs...)
}

// packageScope is to a package what a testing.TB is to a test: its directories and
// cleanups last until Main ends it. What fails while a test is waiting for the
// start fails that test, what fails at the end the package.
type packageScope struct {
	testing.TB // of the test that is waiting

	ctx    context.Context //nolint:containedctx // as that of a test
	cancel context.CancelFunc

	mu       sync.Mutex
	over     bool
	dirs     []string
	cleanups []func()
	errs     []error
}

func newPackageScope(t testing.TB) *packageScope {
	t.Helper()
	s := &packageScope{TB: t}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(t.Context()))
	scopesMu.Lock()
	scopes = append(scopes, s)
	scopesMu.Unlock()
	return s
}

// started says that the test does not wait any more.
func (s *packageScope) started() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
}

// Context implements testing.TB.
func (s *packageScope) Context() context.Context { return s.ctx }

// Cleanup implements testing.TB.
func (s *packageScope) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

// TempDir implements testing.TB.
func (s *packageScope) TempDir() string {
	dir, err := os.MkdirTemp("", "shardplane-test")
	require.NoError(s.TB, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirs = append(s.dirs, dir)
	return dir
}

// Helper implements testing.TB.
func (s *packageScope) Helper() {
	if !s.isOver() {
		s.TB.Helper()
	}
}

// Errorf implements testing.TB.
func (s *packageScope) Errorf(format string, args ...any) {
	if !s.isOver() {
		s.TB.Errorf(format, args...)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs = append(s.errs, fmt.Errorf(format, args...))
}

// FailNow implements testing.TB. At the end the other cleanups go on.
func (s *packageScope) FailNow() {
	if !s.isOver() {
		s.TB.FailNow()
	}
}

func (s *packageScope) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// end runs the cleanups, and returns what failed in them.
func (s *packageScope) end() error {
	s.cancel()
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
	for _, dir := range s.dirs {
		s.errs = append(s.errs, os.RemoveAll(dir))
	}
	err := errors.Join(s.errs...)
	s.cleanups, s.dirs, s.errs = nil, nil, nil
	return err
}
