package load

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/shardplane/shardplane/test/bench/measure"
)

// HopOptions say how Hops reads.
type HopOptions struct {
	// Clients send one GET after the other, each on its own connection.
	Clients int
	// Rounds is how often each target is measured, by turns, for Duration.
	Rounds   int
	Duration time.Duration
	// Objects is how many ConfigMaps are read, each of Size bytes of data.
	Objects, Size int
	// Run tells the objects of this run from others.
	Run string
}

// Hops measures GETs of the same objects on several ways to the same server, by turns, and
// compares the medians with those of the first way.
func Hops(ctx context.Context, targets []Target, o HopOptions) (results []measure.Result, err error) {
	maker, err := targets[0].client()
	if err != nil {
		return nil, err
	}
	var made names
	for n := range o.Objects {
		name := fmt.Sprintf("bench-%s-%d", o.Run, n)
		if _, err := maker.CoreV1().ConfigMaps(namespace).Create(ctx, configMap(name, o.Run, map[string]string{"data": strings.Repeat("x", o.Size)}), metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("creating what is to be read: %w", err)
		}
		made.add(name)
	}
	phases := make([]phase, len(targets))
	users := make([][]*kubernetes.Clientset, len(targets))
	for i, target := range targets {
		if users[i], err = clients(o.Clients, target.client); err != nil {
			return nil, err
		}
	}
	elapsed := make([]time.Duration, len(targets))
	for range o.Rounds {
		for i := range targets {
			running, cancel := context.WithTimeout(ctx, o.Duration)
			elapsed[i] += run(running, &phases[i], users[i], func(ctx context.Context, c *kubernetes.Clientset, n int) error {
				_, err := c.CoreV1().ConfigMaps(namespace).Get(ctx, made.at(spread(n)), metav1.GetOptions{})
				return err
			})
			cancel()
		}
	}
	for i, target := range targets {
		result, err := phases[i].result("get ConfigMap", target.Name, elapsed[i])
		if err != nil {
			return results, fmt.Errorf("reading at %s: %w", target.Name, err)
		}
		results = append(results, result)
		if i > 0 && result.Latency != nil && results[0].Latency != nil {
			results[i].Ratio = result.Latency.P50 / results[0].Latency.P50
			results[i].Note = "ratio of the medians"
		}
	}
	return results, deleteRun(ctx, maker, o.Run)
}
