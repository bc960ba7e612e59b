package downstream

// elsewhere has f done by another goroutine, and returns when it is.
//
// To take a request that says something new needs several times the stack that a stream needs
// to wait for the next. A stack that has grown is copied for that, and stays large until the
// garbage collector comes. So if the streams' goroutines took them, a herd of clients would
// have twice the stacks that it needs, and spend a tenth of its time on copying them.
func elsewhere(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}
