//go:build seededbug

package storage

import (
	"context"
	"os"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// SeededBugEnv lists the bugs that a build with the tag seededbug has:
// dropevent loses a watch event now and then, skippage a page of a list.
const SeededBugEnv = "SHARDPLANE_SEEDED_BUG"

// Of so many events and pages one is lost.
const (
	dropEvery = 25
	skipEvery = 3
)

var seeded = struct {
	drop, skip    bool
	events, pages atomic.Int64
}{
	drop: strings.Contains(os.Getenv(SeededBugEnv), "dropevent"),
	skip: strings.Contains(os.Getenv(SeededBugEnv), "skippage"),
}

type forgetfulWatcher struct{ watcher }

func seedWatcher(w watcher) watcher {
	if !seeded.drop {
		return w
	}
	return forgetfulWatcher{w}
}

// Watch implements watcher.
func (f forgetfulWatcher) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	w, err := f.watcher.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	return watch.Filter(w, func(event watch.Event) (watch.Event, bool) {
		ordinary := event.Type != watch.Bookmark && event.Type != watch.Error
		return event, !ordinary || seeded.events.Add(1)%dropEvery != 0
	}), nil
}

func seedPage(token string, list runtime.Object) error {
	if !seeded.skip || token == "" || seeded.pages.Add(1)%skipEvery != 0 {
		return nil
	}
	return meta.SetList(list, nil)
}
