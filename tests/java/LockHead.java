import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * Takes the original's kind of lock: the whole head file, exclusively, or not at all.
 *
 * <p>Prints "refused", or "locked" and then holds the lock until a line comes on standard input.
 */
class LockHead {
    public static void main(String[] arguments) throws IOException {
        try (FileChannel head = FileChannel.open(
                Path.of(arguments[0]),
                StandardOpenOption.CREATE,
                StandardOpenOption.READ,
                StandardOpenOption.WRITE,
                StandardOpenOption.DSYNC)) {
            FileLock lock = head.tryLock();
            if (lock == null) {
                System.out.println("refused");
                return;
            }
            System.out.println("locked");
            System.in.read();
            lock.release();
        }
    }
}
