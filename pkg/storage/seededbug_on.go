//go:build seededbug

package storage

import (
	"os"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
)

// SeededBugEnv lists the bugs that a build with the tag seededbug has:
// dropevent loses an event in the hub now and then, skippage a page of a list.
const SeededBugEnv = "SHARDPLANE_SEEDED_BUG"

// Of so many pages one is lost.
const skipEvery = 3

var seeded = struct {
	skip  bool
	pages atomic.Int64
}{
	skip: strings.Contains(os.Getenv(SeededBugEnv), "skippage"),
}

func seedPage(token string, list runtime.Object) error {
	if !seeded.skip || token == "" || seeded.pages.Add(1)%skipEvery != 0 {
		return nil
	}
	return meta.SetList(list, nil)
}
