package qsidecar

// Queued returns the number of requests that are not written yet.
func (c *Client) Queued() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue)
}
