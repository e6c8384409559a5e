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

// Shared is a cluster that tests of a package share because starting one is expensive. Each test must use separate logical clusters,
// and tests in parallel must not stop components. The cluster is started by the first test that uses it, and stopped after the last test,
// for which TestMain must call Main.
type Shared struct {
	// Options configure the cluster. They must not change after the first call of Get.
	Options Options

	mu      sync.Mutex
	scope   *packageScope
	cluster *Cluster
	users   map[string]bool
}

// ClusterEnv is the environment variable with the working directory of a running `shardplane dev`, which Shared.Get returns instead of
// starting a cluster.
const ClusterEnv = "SHARDPLANE_CLUSTER"

// Get returns the cluster with methods that fail t. If a test calls it again, e.g. with -count=2, the cluster is replaced by an empty one.
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
	return s.cluster.forTest(t)
}

// forTest returns the cluster with methods that fail t.
func (c *Cluster) forTest(t testing.TB) *Cluster {
	t.Helper()
	same := &Cluster{Dir: c.Dir, t: t}
	for _, component := range c.components {
		same.components = append(same.components, &Component{Name: component.Name, URL: component.URL, t: t, componentState: component.componentState})
	}
	return same
}

var (
	scopesMu sync.Mutex
	// scopes contains the scopes that have not ended.
	scopes []*packageScope
)

// endScopes ends the shared clusters of the package.
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

// packageScope is a testing.TB for a package: its directories and cleanups last until Main ends it. Failures during the start fail the
// test that waits for it, and failures at the end fail the package.
type packageScope struct {
	testing.TB // the test that waits for the start

	ctx    context.Context //nolint:containedctx // implements testing.TB
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

// started marks the end of the start.
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

// FailNow implements testing.TB. At the end it does not prevent other cleanups.
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

// end runs the cleanups, and returns their errors.
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
