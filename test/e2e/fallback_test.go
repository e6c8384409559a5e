package e2e

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

const (
	partTimeout = time.Minute
	partTick    = 20 * time.Millisecond
)

// part is an informer that holds one of two parts of a server's ConfigMaps.
type part struct {
	*client.Informer[*corev1.ConfigMap]

	t        *testing.T
	scope    client.Scope
	ranges   client.Ranges
	registry *prometheus.Registry

	mu  sync.Mutex
	log []string
}

func followPart(t *testing.T, config *rest.Config, in func(*client.Factory) client.Scope, key client.ShardKey, i int) *part {
	t.Helper()
	ranges, err := client.PartOf(key, i, 2)
	require.NoError(t, err)
	p := &part{t: t, ranges: ranges, registry: prometheus.NewRegistry()}
	factory, err := client.NewFactory(config, client.WithMetrics(p.registry))
	require.NoError(t, err)
	t.Cleanup(factory.CloseIdleConnections)
	p.scope = in(factory)
	p.Informer = kinds.ConfigMaps.Informer(p.scope, client.InformerOptions[*corev1.ConfigMap]{Ranges: ranges})
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), funcr.New(func(_, line string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.log = append(p.log, line)
	}, funcr.Options{})))
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	return p
}

// holdsItsPart waits until the informer has what the server has in its ranges.
func (p *part) holdsItsPart() {
	p.t.Helper()
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		all, err := kinds.ConfigMaps.In(p.scope).List(p.t.Context(), metav1.ListOptions{})
		require.NoError(c, err)
		want, have := map[client.Key]string{}, map[client.Key]string{}
		for i := range all.Items {
			if obj := &all.Items[i]; p.ranges.Contains(obj) {
				want[client.KeyOf(obj)] = obj.ResourceVersion
			}
		}
		for _, obj := range p.Lister().List(nil) {
			have[client.KeyOf(obj)] = obj.ResourceVersion
		}
		require.Equal(c, want, have)
		require.Less(c, len(want), len(all.Items))
		require.True(c, p.HasSynced())
	}, partTimeout, partTick)
}

// isFilteredBy waits until the informer says who filters, in its metrics, too. That it is the
// client is in the log, once.
func (p *part) isFilteredBy(by client.Filtered) {
	p.t.Helper()
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		require.Equal(c, by, p.Filtered())
		require.InDelta(c, 1, p.metric("filtered", string(by)), 0)
	}, partTimeout, partTick)
	if by != client.FilteredByClient {
		return
	}
	require.NotZero(p.t, p.Discarded())
	require.EventuallyWithT(p.t, func(c *assert.CollectT) { // it may discard more meanwhile
		require.InDelta(c, p.Discarded(), p.metric("discarded_total", ""), 0)
	}, partTimeout, partTick)
	p.mu.Lock()
	defer p.mu.Unlock()
	told := 0
	for _, line := range p.log {
		if strings.Contains(line, "each replica receives all of them") {
			told++
		}
	}
	require.Equal(p.t, 1, told, "%v", p.log)
}

// metric returns the value of an informer's metric, by who filters if that is not empty.
func (p *part) metric(name, by string) float64 {
	families, err := p.registry.Gather()
	if err != nil {
		return -1
	}
	for _, family := range families {
		if family.GetName() != "shardplane_client_informer_"+name {
			continue
		}
		for _, m := range family.GetMetric() {
			if by == "" {
				return m.GetCounter().GetValue()
			}
			for _, label := range m.GetLabel() {
				if label.GetName() == "by" && label.GetValue() == by {
					return m.GetGauge().GetValue()
				}
			}
		}
	}
	return -1
}
