package reconcile

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/shardplane/shardplane/pkg/client"
)

type informed struct {
	handler client.Handler[*corev1.Namespace]
}

func (i *informed) AddEventHandler(h client.Handler[*corev1.Namespace], _ ...client.HandlerOption) *client.Registration {
	i.handler = h
	return &client.Registration{}
}

type delays map[client.Key]time.Duration

func (d delays) Add(key client.Key)                           { d[key] = 0 }
func (d delays) AddAfter(key client.Key, after time.Duration) { d[key] = after }

func (d delays) Drop(key client.Key) { delete(d, key) }

// TestSpread: a few keys are added immediately, and the others at a limited rate.
func TestSpread(t *testing.T) {
	var namespaces informed
	queue, count := delays{}, burst
	_, err := SpreadFromInformer(&namespaces, func(*corev1.Namespace) []client.Key {
		keys := make([]client.Key, count)
		for i := range keys {
			keys[i].Name = fmt.Sprint(i)
		}
		return keys
	})(t.Context(), queue)
	require.NoError(t, err)
	namespaces.handler.OnUpdate(nil, nil)
	require.Len(t, queue, burst)
	for _, after := range queue {
		require.Zero(t, after)
	}
	count = 10000
	clear(queue)
	namespaces.handler.OnUpdate(nil, nil)
	require.Len(t, queue, count)
	times := map[time.Duration]int{}
	for _, after := range queue {
		times[after]++
		require.Less(t, after, 26*time.Second)
	}
	require.Equal(t, burst, times[0])
	require.Len(t, times, count-burst+1, "keys after the burst must have different times")
}
