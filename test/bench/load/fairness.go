package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/shardplane/shardplane/test/bench/measure"
)

// FairnessOptions say how a quiet logical cluster is measured.
type FairnessOptions struct {
	// Rounds is how often it is measured alone and disturbed.
	Rounds int
	// Duration is how long each of both takes.
	Duration time.Duration
	// Interval is the time between the starts of two requests.
	Interval time.Duration
	// Size is the number of bytes of data in an object.
	Size int
	// Writes has all requests create something; otherwise it is a mix.
	Writes bool
	// Run tells the objects of this run from others.
	Run string
}

// Disturbance is what the quiet logical cluster is measured beside.
type Disturbance interface {
	// Start returns when it disturbs with full force.
	Start() error
	// Stop returns when it has ended.
	Stop() error
}

// Fairness measures the requests of one client in a quiet logical cluster, alone
// and disturbed by turns, so that what else the machine does concerns both
// alike. The ratio is that of the p99s of all rounds together: a round is too
// short for a p99 that can be relied on.
func Fairness(ctx context.Context, quiet Target, o FairnessOptions, noise Disturbance) ([]measure.Result, error) {
	calm, err := quiet.client()
	if err != nil {
		return nil, err
	}
	defer func() { _ = deleteRun(ctx, calm, o.Run) }() // what is left over spoils no later run
	var alone, disturbed measure.Recorder
	ratios := make([]float64, 0, o.Rounds)
	for round := range o.Rounds {
		before := quietRequests(ctx, calm, o, fmt.Sprintf("q-%s-%d-alone", o.Run, round), &alone)
		if err := noise.Start(); err != nil {
			return nil, err
		}
		after := quietRequests(ctx, calm, o, fmt.Sprintf("q-%s-%d-disturbed", o.Run, round), &disturbed)
		if err := errors.Join(noise.Stop(), ctx.Err()); err != nil {
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
	if d.Latency != nil && a.Latency.P99 > 0 {
		d.Ratio = d.Latency.P99 / a.Latency.P99
	}
	if slices.Sort(ratios); len(ratios) > 0 {
		d.Note = strings.TrimSpace(fmt.Sprintf("ratio of the p99s; of single rounds' %.2f to %.2f, median %.2f. %s", ratios[0], ratios[len(ratios)-1], ratios[len(ratios)/2], d.Note))
	}
	return []measure.Result{a, d}, err
}

func recorded(r *measure.Recorder, name, target string, elapsed time.Duration) (measure.Result, error) {
	result := r.Rate(name, target, elapsed)
	first := r.FirstError()
	if result.Count == 0 {
		return result, cmp.Or(first, errTooShort)
	}
	if first != nil {
		result.Note = "first error: " + first.Error()
	}
	return result, nil
}

// quietRequests sends requests at a steady pace and returns their p99.
func quietRequests(ctx context.Context, client *kubernetes.Clientset, o FairnessOptions, prefix string, all *measure.Recorder) float64 {
	ctx, cancel := context.WithTimeout(ctx, o.Duration)
	defer cancel()
	data := map[string]string{"data": strings.Repeat("x", o.Size)}
	p := &phase{interval: o.Interval}
	elapsed := run(ctx, p, []*kubernetes.Clientset{client}, func(ctx context.Context, c *kubernetes.Clientset, n int) error {
		start := time.Now()
		if o.Writes {
			n *= cycle // each is the first of a cycle
		}
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

// cycle is how many requests mixed has.
const cycle = 5

// mixed is the n-th request of a client: a create, a list, reads of what the
// create made.
func mixed(ctx context.Context, c *kubernetes.Clientset, run, prefix string, n int, data map[string]string) error {
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
