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

	"github.com/shardplane/shardplane/pkg/instruments"
)

// pollInterval is the interval at which files are checked without a notification, as in kube-apiserver.
const pollInterval = time.Minute

// errAgain is wrapped by errors after which the same content is loaded again.
var errAgain = errors.New("retrying within a minute")

// watchedFiles calls load when the content of files has changed. If load fails, the error is logged and
// counted, and the previous content remains in use.
type watchedFiles struct {
	name    string
	files   []string
	load    func(ctx context.Context) error
	reloads *prometheus.CounterVec

	mu   sync.Mutex
	seen [sha256.Size]byte
}

// newWatchedFiles assumes that the current content is loaded.
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
		logger.Error(err, "Failed to reload a file for authentication, using the previous content")
	default:
		w.reloads.WithLabelValues(w.name, "success").Inc()
		logger.Info("Reloaded a file for authentication")
	}
}

// digest identifies the content of files. A file that cannot be read differs from any that can.
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

func newReloads(registerer prometheus.Registerer) *prometheus.CounterVec {
	return instruments.NewCounterVec(registerer, "shardplane_authentication_reloads_total",
		"Reloads of changed authentication files, by content and result (success or failure). After a failure, the previous content remains in use.", "what", "result")
}
