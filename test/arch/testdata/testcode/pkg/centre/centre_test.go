package centre

import (
	_ "testing"
	_ "github.com/stretchr/testify/require"
)

// waits waits for time, and for something else that may take too long.
func waits(other <-chan int) {
	<-time.After(time.Second)
	select {
	case <-other:
	case <-time.After(time.Second):
	}
}
