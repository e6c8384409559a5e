package apibinding

import (
	"fmt"
	"testing"
	"time"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/client"
)

// informed tells a handler of what a test calls it with.
type informed struct {
	handler client.Handler[*apisv1alpha2.APIExport]
}

func (i *informed) AddEventHandler(h client.Handler[*apisv1alpha2.APIExport], _ ...client.HandlerOption) *client.Registration {
	i.handler = h
	return &client.Registration{}
}

// delays are when keys are looked at.
type delays map[client.Key]time.Duration

func (d delays) Add(key client.Key)                           { d[key] = 0 }
func (d delays) AddAfter(key client.Key, after time.Duration) { d[key] = after }

func (d delays) Drop(key client.Key) { delete(d, key) }

// TestFollowing: few bindings follow their export at once, many one after the other.
func TestFollowing(t *testing.T) {
	var exports informed
	queue, count := delays{}, atOnce
	_, err := following(&exports, func(*apisv1alpha2.APIExport) []client.Key {
		keys := make([]client.Key, count)
		for i := range keys {
			keys[i].Name = fmt.Sprint(i)
		}
		return keys
	})(t.Context(), queue)
	require.NoError(t, err)
	exports.handler.OnUpdate(nil, nil)
	require.Len(t, queue, atOnce)
	for _, after := range queue {
		require.Zero(t, after)
	}
	count = 10000
	clear(queue)
	exports.handler.OnUpdate(nil, nil)
	require.Len(t, queue, count)
	times := map[time.Duration]int{}
	for _, after := range queue {
		times[after]++
		require.Less(t, after, 26*time.Second)
	}
	require.Equal(t, atOnce, times[0])
	require.Len(t, times, count-atOnce+1, "no two at a time")
}
