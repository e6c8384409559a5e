package authn

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"time"

	"k8s.io/klog/v2"
)

// watchedFiles calls load whenever the content of files has changed. What load
// loaded before stays in use when it fails, which is logged and counted; it is
// called again with every change.
type watchedFiles struct {
	name  string
	files []string
	load  func() error
	seen  [sha256.Size]byte
}

// newWatchedFiles takes what the files hold now for loaded.
func newWatchedFiles(name string, files []string, load func() error) *watchedFiles {
	return &watchedFiles{name: name, files: files, load: load, seen: digest(files)}
}

func (w *watchedFiles) run(ctx context.Context, interval time.Duration) {
	everyTick(ctx, interval, func() { w.check(ctx) })
}

func (w *watchedFiles) check(ctx context.Context) {
	now := digest(w.files)
	if now == w.seen {
		return
	}
	w.seen = now
	reported(ctx, w.name, w.files, w.load())
}

// reported logs and counts how a reload went.
func reported(ctx context.Context, name string, files []string, err error) {
	logger := klog.FromContext(ctx).WithValues("what", name, "files", files)
	if err != nil {
		reloads.WithLabelValues(name, "failure").Inc()
		logger.Error(err, "A changed file for authentication cannot be used; what it held before stays in use")
		return
	}
	reloads.WithLabelValues(name, "success").Inc()
	logger.Info("Reloaded a file for authentication")
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

func everyTick(ctx context.Context, interval time.Duration, do func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			do()
		}
	}
}
