package storage

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/request"
)

// TestResumeDuringPagination verifies that watches that resume receive each event once and in order during paginated lists.
func TestResumeDuringPagination(t *testing.T) {
	const (
		rounds, pods, pagers = 4, 48, 8
		others               = 150 // events that the watches do not receive
	)
	s := open(t, backendOf(t, BackendConfig{}), podsGR)
	ctx := in(t.Context(), "aa")
	create(ctx, t, s, newPod("other", "one"))
	last := make([]string, pods)
	for i := range last {
		last[i] = create(ctx, t, s, newPod("ns", fmt.Sprint(i))).ResourceVersion
	}
	var over atomic.Bool
	var readers errgroup.Group
	t.Cleanup(func() {
		over.Store(true)
		assert.NoError(t, readers.Wait())
	})
	for range pagers {
		readers.Go(func() error { return pageUntil(context.WithoutCancel(t.Context()), &over, s, pods+1) })
	}
	for range rounds {
		for i := range others {
			touch(ctx, t, s, "/pods/other/one", i)
		}
		var watches errgroup.Group
		for i := range last {
			watches.Go(func() (err error) {
				last[i], err = resumeOnce(ctx, s, fmt.Sprint("/pods/ns/", i), last[i])
				return err
			})
		}
		require.NoError(t, watches.Wait())
	}
}

// resumeOnce watches a pod from a version during changes, and returns the version of the last change.
func resumeOnce(ctx context.Context, s *tenantStorage, key, from string) (string, error) {
	opts := storage.ListOptions{Predicate: everything(), ResourceVersion: from}
	w, err := s.Watch(ctx, key, opts)
	if err != nil {
		return "", err
	}
	defer w.Stop()
	var want, got []string
	for range 3 {
		pod := &example.Pod{}
		if err := s.GuaranteedUpdate(ctx, key, pod, false, nil, relabel(from), nil); err != nil {
			return "", err
		}
		from = pod.ResourceVersion
		want = append(want, from)
	}
	for len(got) == 0 || got[len(got)-1] != from {
		select {
		case event := <-w.ResultChan():
			version, err := storage.APIObjectVersioner{}.ObjectResourceVersion(event.Object)
			if err != nil || event.Type != watch.Modified {
				return "", fmt.Errorf("%s of %s: %v: %w", event.Type, key, event.Object, err)
			}
			got = append(got, strconv.FormatUint(version, 10))
		case <-time.After(deadline):
			return "", fmt.Errorf("%s: no event after %v, want %v", key, got, want)
		}
	}
	if !slices.Equal(want, got) {
		return "", fmt.Errorf("%s changed at %v, but its watch returned %v", key, want, got)
	}
	return from, nil
}

// pageUntil repeats paginated lists until the test is over, and checks that each is complete and consistent.
func pageUntil(ctx context.Context, over *atomic.Bool, s *tenantStorage, want int) error {
	for !over.Load() {
		token, version, got := "", "", 0
		for first := true; first || token != ""; first = false {
			list := &example.PodList{}
			if err := s.GetList(request.WithWildcard(ctx), "/pods", page(1, token), list); err != nil {
				return err
			}
			if first {
				version = list.ResourceVersion
			}
			if list.ResourceVersion != version {
				return fmt.Errorf("a list at %s continues at %s", version, list.ResourceVersion)
			}
			token, got = list.Continue, got+len(list.Items)
		}
		if got != want {
			return fmt.Errorf("%d pods in pages, want %d", got, want)
		}
	}
	return nil
}
