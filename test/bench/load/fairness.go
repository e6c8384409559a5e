package load

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/shardplane/shardplane/test/bench/measure"
)

// FairnessOptions say how one logical cluster disturbs another.
type FairnessOptions struct {
	// Clients of the noisy logical cluster send one request after the other.
	Clients int
	// Rounds is how often the quiet one is measured alone and disturbed.
	Rounds int
	// Duration is how long each of both takes.
	Duration time.Duration
	// Interval is the time between the starts of two requests of the quiet one.
	Interval time.Duration
	// Size is the number of bytes of data in an object.
	Size int
	// Run tells the objects of this run from others.
	Run string
}

// Fairness measures the requests of one client in a quiet logical cluster,
// alone and while many clients of a noisy one send what they can, by turns, so
// that what else the machine does disturbs both alike. The ratio of the p99s is
// the median of the rounds'.
func Fairness(ctx context.Context, quiet, noisy Target, o FairnessOptions) ([]measure.Result, error) {
	calm, err := quiet.client()
	if err != nil {
		return nil, err
	}
	flood, err := clients(o.Clients, noisy.client)
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = deleteRun(ctx, calm, o.Run) // what is left over spoils no later run
		_ = deleteRun(ctx, flood[0], o.Run)
	}()
	data := map[string]string{"data": strings.Repeat("x", o.Size)}
	var alone, disturbed, noise measure.Recorder
	var refused atomic.Int64
	ratios := make([]float64, 0, o.Rounds)
	for round := range o.Rounds {
		before := quietRequests(ctx, calm, o, fmt.Sprintf("q-%s-%d-alone", o.Run, round), data, &alone)
		flooding, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { floodWith(flooding, flood, o, round, data, &noise, &refused) })
		after := quietRequests(ctx, calm, o, fmt.Sprintf("q-%s-%d-disturbed", o.Run, round), data, &disturbed)
		stop()
		wg.Wait()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if before > 0 {
			ratios = append(ratios, after/before)
		}
	}
	total := time.Duration(o.Rounds) * o.Duration
	a, err := recorded(&alone, "quiet tenant, alone", quiet.Name, total)
	if err != nil {
		return nil, err
	}
	d, err := recorded(&disturbed, "quiet tenant, beside a flood", quiet.Name, total)
	if err != nil {
		return []measure.Result{a}, err
	}
	n, err := recorded(&noise, fmt.Sprintf("flood from %d clients", o.Clients), noisy.Name, total)
	n.Note = fmt.Sprintf("%d answered with 429", refused.Load())
	slices.Sort(ratios)
	if len(ratios) > 0 {
		d.Ratio = ratios[len(ratios)/2]
		d.Note = fmt.Sprintf("ratio of the p99s, median of %d rounds, %.2f to %.2f", len(ratios), ratios[0], ratios[len(ratios)-1])
	}
	return []measure.Result{a, d, n}, err
}

func recorded(r *measure.Recorder, name, target string, elapsed time.Duration) (measure.Result, error) {
	p := &phase{}
	result := r.Rate(name, target, elapsed)
	if result.Count > 0 {
		if err := r.FirstError(); err != nil {
			result.Note = "first error: " + err.Error()
		}
		return result, nil
	}
	return p.result(name, target, elapsed)
}

// quietRequests sends requests at a steady pace and returns their p99.
func quietRequests(ctx context.Context, client *kubernetes.Clientset, o FairnessOptions, prefix string, data map[string]string, all *measure.Recorder) float64 {
	ctx, cancel := context.WithTimeout(ctx, o.Duration)
	defer cancel()
	p := &phase{interval: o.Interval}
	elapsed := run(ctx, p, []*kubernetes.Clientset{client}, func(ctx context.Context, c *kubernetes.Clientset, n int) error {
		start := time.Now()
		err := mixed(ctx, c, o.Run, prefix, n, data)
		switch {
		case err == nil:
			all.Add(time.Since(start))
		case ctx.Err() == nil:
			all.Fail(err)
		}
		return err
	})
	if l := p.recorder.Rate("", "", elapsed).Latency; l != nil {
		return l.P99
	}
	return 0
}

// floodWith sends what goes until the context ends.
func floodWith(ctx context.Context, users []*kubernetes.Clientset, o FairnessOptions, round int, data map[string]string, all *measure.Recorder, refused *atomic.Int64) {
	prefix := fmt.Sprintf("f-%s-%d", o.Run, round)
	run(ctx, &phase{}, users, func(ctx context.Context, c *kubernetes.Clientset, n int) error {
		start := time.Now()
		err := mixed(ctx, c, o.Run, prefix, n, data)
		switch {
		case err == nil:
			all.Add(time.Since(start))
		case apierrors.IsTooManyRequests(err):
			refused.Add(1)
		case ctx.Err() == nil:
			all.Fail(err)
		}
		return nil
	})
}

// mixed is the n-th request of a client: a create, a list, reads of what the
// create made.
func mixed(ctx context.Context, c *kubernetes.Clientset, run, prefix string, n int, data map[string]string) error {
	const cycle = 5
	name := fmt.Sprintf("%s-%d", prefix, n)
	configMaps := c.CoreV1().ConfigMaps(namespace)
	var err error
	switch n % cycle {
	case 0:
		_, err = configMaps.Create(ctx, configMap(name, run, data), metav1.CreateOptions{})
	case 1:
		_, err = configMaps.List(ctx, metav1.ListOptions{Limit: 100})
	default:
		_, err = configMaps.Get(ctx, fmt.Sprintf("%s-%d", prefix, n-n%cycle), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			err = nil // another client has not created it yet
		}
	}
	return err
}
