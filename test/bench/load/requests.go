package load

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/shardplane/shardplane/test/bench/measure"
)

// namespace is where objects go in every logical cluster.
const namespace = "default"

// benchLabel marks what the benchmark makes, so that it can be removed.
const benchLabel = "shardplane.io/bench"

// RequestOptions say how Requests loads a target.
type RequestOptions struct {
	// Clients send one request after the other, each on its own connection.
	Clients int
	// Duration bounds the creates and, each, the reads and the updates.
	Duration time.Duration
	// Size is the number of bytes of data in an object.
	Size int
	// Run tells the objects of this run from others.
	Run string
}

// Requests measures requests for single ConfigMaps: creates for the duration,
// gets and updates of what was created for the duration each, then the deletes
// of all of it.
func Requests(ctx context.Context, target Target, o RequestOptions) (results []measure.Result, err error) {
	users, err := clients(o.Clients, target.client)
	if err != nil {
		return nil, err
	}
	data := map[string]string{"data": strings.Repeat("x", o.Size)}
	defer func() {
		// A create that the deadline cut off may have happened all the same.
		if cleanupErr := deleteRun(ctx, users[0], o.Run); err == nil && cleanupErr != nil {
			err = fmt.Errorf("removing the objects of the run: %w", cleanupErr)
		}
	}()

	var made names
	steps := []struct {
		verb string
		// all ends the step with the last of the objects, not only with time.
		all bool
		op  func(context.Context, *kubernetes.Clientset, int) error
	}{
		{verb: "create", op: func(ctx context.Context, c *kubernetes.Clientset, n int) error {
			name := fmt.Sprintf("bench-%s-%d", o.Run, n)
			_, err := c.CoreV1().ConfigMaps(namespace).Create(ctx, configMap(name, o.Run, data), metav1.CreateOptions{})
			if err == nil {
				made.add(name)
			}
			return err
		}},
		{verb: "get", op: func(ctx context.Context, c *kubernetes.Clientset, n int) error {
			_, err := c.CoreV1().ConfigMaps(namespace).Get(ctx, made.at(spread(n)), metav1.GetOptions{})
			return err
		}},
		{verb: "update", op: func(ctx context.Context, c *kubernetes.Clientset, n int) error {
			object := configMap(made.at(n), o.Run, data)
			object.Data["n"] = strconv.Itoa(n)
			_, err := c.CoreV1().ConfigMaps(namespace).Update(ctx, object, metav1.UpdateOptions{})
			return err
		}},
		{verb: "delete", all: true, op: func(ctx context.Context, c *kubernetes.Clientset, n int) error {
			return c.CoreV1().ConfigMaps(namespace).Delete(ctx, made.at(n), metav1.DeleteOptions{})
		}},
	}
	for _, step := range steps {
		p := &phase{}
		if step.all {
			p.limit = int64(made.len())
		}
		running, cancel := context.WithTimeout(ctx, o.Duration)
		elapsed := run(running, p, users, step.op)
		cancel()
		result, err := p.result(step.verb+" ConfigMap", target.Name, elapsed)
		if err != nil {
			return results, fmt.Errorf("%s ConfigMaps at %s: %w", step.verb, target.Name, err)
		}
		results = append(results, result)
	}
	return results, nil
}

// names are the objects that exist, in the order in which they were made.
type names struct {
	mu  sync.Mutex
	all []string
}

func (l *names) add(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, name)
}

func (l *names) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

// at returns one of the names for any number.
func (l *names) at(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[n%len(l.all)]
}

func configMap(name, run string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{benchLabel: run}},
		Data:       maps.Clone(data),
	}
}

// spread scatters consecutive numbers, so that reads do not follow the order of
// the writes.
func spread(n int) int { return n * 7919 }

// deleteRun removes whatever a run has left, also when the run was cut off.
func deleteRun(ctx context.Context, client *kubernetes.Clientset, run string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return client.CoreV1().ConfigMaps(namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: benchLabel + "=" + run})
}
