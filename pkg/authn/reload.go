package authn

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/util/filesystem"
	"k8s.io/klog/v2"
)

// pollInterval is how often files are looked at where nothing has announced a
// change, as in kube-apiserver.
const pollInterval = time.Minute

// errAgain is in errors after which the same content may be of use later.
var errAgain = errors.New("it is tried again within a minute")

// watchedFiles calls load whenever the content of files has changed. What load
// loaded before stays in use when it fails, which is logged and counted; it is
// called again with every change.
type watchedFiles struct {
	name  string
	files []string
	load  func(ctx context.Context) error
	// reloads counts them.
	reloads *prometheus.CounterVec

	mu   sync.Mutex
	seen [sha256.Size]byte
}

// newWatchedFiles takes what the files hold now for loaded.
func newWatchedFiles(name string, files []string, reloads *prometheus.CounterVec, load func(ctx context.Context) error) *watchedFiles {
	return &watchedFiles{name: name, files: files, load: load, reloads: reloads, seen: digest(files)}
}

func (w *watchedFiles) run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, file := range w.files {
		wg.Go(func() { filesystem.WatchUntil(ctx, pollInterval, file, func() { w.check(ctx) }, nil) })
	}
	wg.Wait()
}

func (w *watchedFiles) check(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := digest(w.files)
	if now == w.seen {
		return
	}
	w.seen = now
	logger := klog.FromContext(ctx).WithValues("what", w.name, "files", w.files)
	err := w.load(ctx)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		if errors.Is(err, errAgain) {
			w.seen = [sha256.Size]byte{}
		}
		w.reloads.WithLabelValues(w.name, "failure").Inc()
		logger.Error(err, "A changed file for authentication cannot be used; what it held before stays in use")
	default:
		w.reloads.WithLabelValues(w.name, "success").Inc()
		logger.Info("Reloaded a file for authentication")
	}
}

// digest identifies the content of files; a file that cannot be read differs
// from any that can.
func digest(files []string) (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, file := range files {
		content, err := os.ReadFile(file)
		_, _ = fmt.Fprintf(h, "%d %t ", len(content), err == nil)
		_, _ = h.Write(content)
	}
	h.Sum(sum[:0])
	return sum
}
